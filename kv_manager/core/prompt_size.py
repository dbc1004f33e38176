"""How long a prompt may be that is hashed and looked up whole, for one question or one admit."""

from typing import TYPE_CHECKING

from kv_manager.core.errors import bad_item
from kv_manager.core.prefix import TOKEN_BYTES

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool

MAX_PROMPT_BLOCKS = 1 << 20
"""Full blocks: a million tokens at block size 1, and about a second of a core to hash."""


def validate_prompt_blocks(pool: "Pool", field: str, token_ids: bytes) -> None:
    """Refuse a prompt of more full blocks than are looked up at once.

    An admit without a window needs no such bound: what outgrows the pool is rejected before it is looked up.

    Raises:
        ServiceError: INVALID_ARGUMENT naming the field.
    """
    count = len(token_ids) // TOKEN_BYTES // pool.block_size
    if count > MAX_PROMPT_BLOCKS:
        raise bad_item(
            field,
            "OUT_OF_RANGE",
            f"holds {count} full blocks of pool {pool.name!r}, must be at most {MAX_PROMPT_BLOCKS}",
        )
