"""What the worlds of the property tests are made of: kinds of life, and the sequences of a worker."""

import zlib
from dataclasses import dataclass, field

from octavo.kv.v1 import attach_pb2, common_pb2

NO_HOST_BLOCK = 2**32 - 1


@dataclass(frozen=True)
class Regime:
    """What kind of pool and of life."""

    block_size: int = 2
    num_blocks: int = 8
    host_blocks: int = 0
    ordered: bool = True
    own_stream: bool = False
    late_swaps: bool = False
    depth: int = 1
    chunk: int = 3
    watermark: int = 0
    forks: str = ""
    beams: bool = False
    drafts: int = 0
    room: int = 0
    window: int | None = None
    tenants: int = 0
    soft: int = 0
    hard: int = 0
    aborts: float = 0.0
    failures: float = 0.0
    restarts: float = 0.0
    replays: float = 0.0
    skips: float = 0.0
    outgrow: int = 0
    rates: bool = False

    def spec(self, name: str, step: int = 0) -> attach_pb2.PoolSpec:
        spec = attach_pb2.PoolSpec(
            pool=name,
            worker_id="world",
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            block_bytes=1_000,
            host_blocks=self.host_blocks,
            watermark_blocks=self.watermark,
            reuse_regime=common_pb2.REUSE_REGIME_ORDERED if self.ordered else common_pb2.REUSE_REGIME_FENCED,
            swaps_on_own_stream=self.own_stream,
            window=self.window,
            step=step,
        )
        if self.rates:
            spec.rates.prefill_tokens_per_second, spec.rates.copy_bytes_per_second = 1_000.0, 2_000_000.0
        for tenant in range(self.tenants):
            spec.tenant_limits.add(tenant=f"t{tenant}", soft_blocks=self.soft, hard_blocks=self.hard)
        return spec


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(eq=False)
class Stream:
    """A sequence on the worker.

    ``state`` is new, running, parked, victim (of a recompute preemption), folded (to be forked again) or done.
    """

    id: int
    base: list[int]
    prompt: int
    limit: int
    priority: int
    arrival: int
    tenant: str
    starts: int = 0
    forks: int = 0
    turns: int = 0
    group: int = 0
    state: str = "new"
    again: bool = False
    known: int = 0
    launched: int = 0
    ended: int = 0
    sent: int = 0
    target: int = 0
    floor: int = 0
    fork_point: int = 0
    busy: int = 0
    drafts: int = 0
    preemptions: int = 0
    beside: int = 0
    meet: int = 0
    fresh_fork: bool = False
    solo: bool = False
    aborted: bool = False
    table: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = len(self.base)

    def tokens(self, count: int) -> list[int]:
        """Its first tokens: what it was given, then a function of its id and the position."""
        own = [zlib.crc32(b"%d %d" % (self.id, position)) % 3 + 10 for position in range(len(self.base), count)]
        return (self.base + own)[:count]

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.priority, self.arrival, self.id


def pack(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)
