"""``octavo estimate``: how much memory a model's keys and values take. Arithmetic on sizes; no weights, no torch.

- ``shape``: what a model keeps per token; ``built_in``: shapes known by name
- ``config_file``: a config.json read as a shape; ``source``: what the MODEL argument means
- ``sums``: bytes per token, block, sequence and pool; ``variants``: other block sizes, types and kinds of attention
- ``sizes``: amounts of memory, read and written; ``views``: what is printed; ``command``: the options
"""
