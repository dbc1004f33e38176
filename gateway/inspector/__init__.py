"""The inspector: a page that shows a KV manager's pool as it changes, and the stream that feeds it.

- ``pool_state``: a pool folded from its Watch stream, kept so that whoever comes later is told a snapshot
- ``viewers``: what one browser has yet to be told, within bounds
- ``feed``: one Watch stream for all viewers of a pool
- ``hub``: the managers, and a feed per pool somebody looks at
- ``token_ids``: what stands in the blocks, where both operators allowed it to be told
- ``site``: the routes; ``page/``: HTML, CSS and ES modules, served as they lie here
"""
