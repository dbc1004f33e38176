"""From logits to a token id.

- ``params``: what a request asked for
- ``sampler``: filters and draws, keyed by (seed, sample index, position)
"""
