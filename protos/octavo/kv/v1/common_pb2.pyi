from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ReuseRegime(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REUSE_REGIME_UNSPECIFIED: _ClassVar[ReuseRegime]
    REUSE_REGIME_ORDERED: _ClassVar[ReuseRegime]
    REUSE_REGIME_FENCED: _ClassVar[ReuseRegime]
REUSE_REGIME_UNSPECIFIED: ReuseRegime
REUSE_REGIME_ORDERED: ReuseRegime
REUSE_REGIME_FENCED: ReuseRegime

class ResponseHeader(_message.Message):
    __slots__ = ("manager_id", "pool", "epoch", "step")
    MANAGER_ID_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    manager_id: str
    pool: str
    epoch: int
    step: int
    def __init__(self, manager_id: _Optional[str] = ..., pool: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class PrefixRoot(_message.Message):
    __slots__ = ("tenant", "salt", "adapter")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    salt: str
    adapter: str
    def __init__(self, tenant: _Optional[str] = ..., salt: _Optional[str] = ..., adapter: _Optional[str] = ...) -> None: ...

class Rates(_message.Message):
    __slots__ = ("prefill_tokens_per_second", "copy_bytes_per_second")
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    prefill_tokens_per_second: float
    copy_bytes_per_second: float
    def __init__(self, prefill_tokens_per_second: _Optional[float] = ..., copy_bytes_per_second: _Optional[float] = ...) -> None: ...

class PoolStats(_message.Message):
    __slots__ = ("num_blocks", "free_blocks", "cached_blocks", "referenced_blocks", "fenced_blocks", "watermark_blocks", "host_blocks", "host_free_blocks", "running_sequences", "swapped_sequences")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOST_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    free_blocks: int
    cached_blocks: int
    referenced_blocks: int
    fenced_blocks: int
    watermark_blocks: int
    host_blocks: int
    host_free_blocks: int
    running_sequences: int
    swapped_sequences: int
    def __init__(self, num_blocks: _Optional[int] = ..., free_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., referenced_blocks: _Optional[int] = ..., fenced_blocks: _Optional[int] = ..., watermark_blocks: _Optional[int] = ..., host_blocks: _Optional[int] = ..., host_free_blocks: _Optional[int] = ..., running_sequences: _Optional[int] = ..., swapped_sequences: _Optional[int] = ...) -> None: ...

class PoolTotals(_message.Message):
    __slots__ = ("admitted_sequences", "readmitted_sequences", "released_sequences", "lookup_tokens", "hit_tokens", "readmitted_lookup_tokens", "readmitted_hit_tokens", "late_hit_tokens", "granted_blocks", "evicted_blocks", "forks", "copied_blocks", "recompute_preemptions", "swap_preemptions", "swapped_out_blocks", "swapped_in_blocks", "rejected_sequences", "host_dropped_sequences")
    ADMITTED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    READMITTED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    RELEASED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    READMITTED_LOOKUP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    READMITTED_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LATE_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    COPIED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    SWAP_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_OUT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_IN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    HOST_DROPPED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    admitted_sequences: int
    readmitted_sequences: int
    released_sequences: int
    lookup_tokens: int
    hit_tokens: int
    readmitted_lookup_tokens: int
    readmitted_hit_tokens: int
    late_hit_tokens: int
    granted_blocks: int
    evicted_blocks: int
    forks: int
    copied_blocks: int
    recompute_preemptions: int
    swap_preemptions: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    rejected_sequences: int
    host_dropped_sequences: int
    def __init__(self, admitted_sequences: _Optional[int] = ..., readmitted_sequences: _Optional[int] = ..., released_sequences: _Optional[int] = ..., lookup_tokens: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., readmitted_lookup_tokens: _Optional[int] = ..., readmitted_hit_tokens: _Optional[int] = ..., late_hit_tokens: _Optional[int] = ..., granted_blocks: _Optional[int] = ..., evicted_blocks: _Optional[int] = ..., forks: _Optional[int] = ..., copied_blocks: _Optional[int] = ..., recompute_preemptions: _Optional[int] = ..., swap_preemptions: _Optional[int] = ..., swapped_out_blocks: _Optional[int] = ..., swapped_in_blocks: _Optional[int] = ..., rejected_sequences: _Optional[int] = ..., host_dropped_sequences: _Optional[int] = ...) -> None: ...
