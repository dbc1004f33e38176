"""From logits to a token id, for a whole batch at once.

- ``sampler``: the order in which everything below applies
- ``params``, ``results``: what a request asked for, and what a row gets
- ``processors``, ``state``: the seam for what changes single logits, with ``penalties``, ``token_rules``, ``grammar``
- ``filters``: top-k, top-p, min-p, typical-p
- ``philox``, ``draw``: random numbers keyed by (seed, sample index, position), and the tokens they stand for
- ``logprobs``: log-probabilities of the model's own distribution
- ``rows``, ``entries``: arithmetic on rows, and single logits of many rows
"""
