"""An estimate as data, for ``--json``: every amount in bytes."""

from dataclasses import asdict
from typing import Any

from cli.estimate import variants
from cli.estimate.sums import Sizing, steps


def report(sizing: Sizing) -> dict[str, Any]:
    """Everything that the tables show."""
    shape, fits, windows = sizing.shape, sizing.fits, variants.windows(sizing)
    return {
        "model": {**asdict(shape), "windows": list(shape.windows), "kind": shape.kind},
        "dtype": sizing.dtype,
        "block_size": sizing.block_size,
        "context": sizing.context,
        "concurrency": sizing.concurrency,
        "token_bytes": sizing.token_bytes,
        "block_bytes": sizing.block_bytes,
        "sequence_blocks": sizing.sequence_blocks,
        "num_blocks": sizing.num_blocks,
        "pool_bytes": sizing.pool_bytes,
        "fits": None if fits is None else asdict(fits),
        "windows": None if windows is None else asdict(windows),
        "steps": [asdict(step) for step in steps(sizing)],
        "by_block_size": [
            {**_variant(each), "block_size": each.block_size, "mean_waste_tokens": variants.mean_waste(each)}
            for each in variants.by_block_size(sizing)
        ],
        "by_dtype": [{**_variant(each), "dtype": each.dtype} for each in variants.by_dtype(sizing)],
        "by_attention": [asdict(each) for each in variants.by_attention(sizing)],
    }


def _variant(sizing: Sizing) -> dict[str, Any]:
    fits = sizing.fits
    return {
        "token_bytes": sizing.token_bytes,
        "block_bytes": sizing.block_bytes,
        "pool_bytes": sizing.pool_bytes,
        "fits": None if fits is None else asdict(fits),
    }
