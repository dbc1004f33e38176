"""The random numbers of a batch: Philox 4x64-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).

A counter-based generator has no state to carry: a number is a function of its key and its counter. Here the key is
(seed, sample index) and the counter the position, so neither the batch nor a preemption nor another worker changes it.
The numbers are those of ``numpy.random.Philox``, which makes one generator object per key; this makes one pass for all.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 10
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_BITS_BELOW_DOUBLE = np.uint64(11)

# One row per multiplication of a round: of counter word 0, and of counter word 2.
_MULTIPLIERS = np.array([[0xD2E7470EE14C6C93], [0xCA5A826395121157]], dtype=np.uint64)
_KEY_STEPS = np.array([[0x9E3779B97F4A7C15], [0xBB67AE8584CAA73B]], dtype=np.uint64)
_MULTIPLIERS_LOW, _MULTIPLIERS_HIGH = _MULTIPLIERS & _LOW, _MULTIPLIERS >> _HALF

Words = NDArray[np.uint64]


def uniforms(seeds: Sequence[int], indexes: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """``[rows, 4]``: the numbers in [0, 1) drawn for each ``position`` of sample ``index``; 53 random bits each.

    All arguments are below 2**64 and of one length.
    """
    # Each as its own array: numpy makes floats of a list that mixes numbers beyond 2**63 with smaller ones.
    keys = np.stack([np.array(seeds, dtype=np.uint64), np.array(indexes, dtype=np.uint64)])
    # numpy counts before it generates, so position p is counter p + 1.
    counters = np.array(positions, dtype=np.uint64) + np.uint64(1)
    multiplied = np.stack([counters, np.zeros_like(counters)])
    others = np.zeros_like(multiplied)
    for _ in range(_ROUNDS):
        high, low = _multiply(multiplied)
        multiplied, others = high[::-1] ^ others ^ keys, low[::-1]
        keys = keys + _KEY_STEPS
    words = np.stack([multiplied[0], others[0], multiplied[1], others[1]], axis=-1)
    numbers: NDArray[np.float64] = (words >> _BITS_BELOW_DOUBLE).astype(np.float64) * 2.0**-53
    return numbers


def _multiply(words: Words) -> tuple[Words, Words]:
    """High and low 64 bits of ``words * _MULTIPLIERS``, by 32-bit halves: numpy has no wider product."""
    low_half, high_half = words & _LOW, words >> _HALF
    middle = high_half * _MULTIPLIERS_LOW + (low_half * _MULTIPLIERS_LOW >> _HALF)
    carry = low_half * _MULTIPLIERS_HIGH + (middle & _LOW)
    return high_half * _MULTIPLIERS_HIGH + (middle >> _HALF) + (carry >> _HALF), words * _MULTIPLIERS
