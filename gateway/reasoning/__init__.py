"""Reasoning: what a model thinks before it answers is told apart from the answer.

- ``marks``: the families' marks, and which of them a chat template knows.
- ``splitter``: an answer's text on its way to reasoning and content.
- ``reader``: the same for one sample, whose reasoning is told or kept.
- ``thinking``: what a request needs of that, where its prompt has left off, and grammars that hold for the content.
- ``effort``: how a chat template is asked for more or less of it.
"""
