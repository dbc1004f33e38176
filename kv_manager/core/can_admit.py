"""CanAdmit: whether a prompt would be served by the next step, and the arithmetic behind it. Changes nothing."""

from typing import TYPE_CHECKING

from kv_manager.core import admission, quotas
from kv_manager.core.prompt_size import validate_prompt_blocks
from kv_manager.core.validation import validate_tokens
from octavo.kv.v1 import lookup_pb2

if TYPE_CHECKING:
    from kv_manager.core.pool import Pool


def verdict(pool: "Pool", request: lookup_pb2.CanAdmitRequest) -> lookup_pb2.CanAdmitResponse:
    """Now, later or never.

    Raises:
        ServiceError: INVALID_ARGUMENT; the prompt is empty, malformed or longer than can be looked up.
    """
    validate_tokens("token_ids", request.token_ids)
    root, chunk = admission.root_of(request.root), len(request.token_ids)
    prompt = admission.Prompt(request.token_ids, root, chunk, request.again, request.beside_blocks)
    capacity: admission.Capacity | admission.Never | None = admission.never_fits(pool, prompt)
    if capacity is None:
        validate_prompt_blocks(pool, "token_ids", request.token_ids)
        capacity = admission.measure(pool, prompt)
    if isinstance(capacity, admission.Never):
        return lookup_pb2.CanAdmitResponse(
            header=pool.header(),
            verdict=lookup_pb2.ADMIT_VERDICT_NEVER,
            needed=capacity.needed,
            available=capacity.available,
        )
    now = capacity.required <= pool.blocks.available
    now = now and quotas.admits(pool, pool.quotas.get(root.tenant), capacity.named, request.again)
    now = now and (request.again or not pool.draining)
    return lookup_pb2.CanAdmitResponse(
        header=pool.header(),
        verdict=lookup_pb2.ADMIT_VERDICT_NOW if now else lookup_pb2.ADMIT_VERDICT_LATER,
        needed=capacity.required,
        available=pool.blocks.available,
        cached_tokens=capacity.cached_tokens,
    )
