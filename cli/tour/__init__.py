"""``octavo tour``: paged memory in two minutes, by the real manager's own answers.

- ``pool``: a small pool of the real manager, and the memory that its answers order about
- ``words``: what the sequences say
- ``scene``: one step of the tour, told; ``scenes``: their order
- ``growing``: scenes with room for everybody; ``scarcity``: scenes without
- ``views``: a scene drawn; ``command``: the pace
"""
