"""``octavo inspect --live``: a pool as it changes, from one Watch stream.

- ``mirror``: the pool as the stream tells it; pure, message in
- ``follower``: a thread that listens, and comes back after a break where it left off
- ``views``: the block map, sequences and preemptions; ``screen``: frames and keys
"""
