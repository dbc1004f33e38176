"""Tool calls: what a model writes becomes calls of functions, and where it must call, a grammar makes it.

- ``functions``: the functions a request offers, and how free the model is to call them.
- ``json_scanner``, ``call_object``: JSON and a call in JSON, character by character.
- ``parser``: what all parsers share; ``hermes``, ``llama``, ``mistral``, ``pythonic``: the families' syntaxes.
- ``families``: the table of them, and which one a chat template belongs to.
- ``reader``: one answer's text on its way to text and calls.
- ``calling``: what a request with tools needs of all that.
"""
