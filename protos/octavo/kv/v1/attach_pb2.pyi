from octavo.kv.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("pool", "sequences")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    pool: PoolSpec
    sequences: LiveSequences
    def __init__(self, pool: _Optional[_Union[PoolSpec, _Mapping]] = ..., sequences: _Optional[_Union[LiveSequences, _Mapping]] = ...) -> None: ...

class PoolSpec(_message.Message):
    __slots__ = ("pool", "worker_id", "num_blocks", "block_size", "block_bytes", "host_blocks", "window", "model_fingerprint", "watermark_blocks", "reuse_regime", "swaps_on_own_stream", "rates", "tenant_limits", "step")
    POOL_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REUSE_REGIME_FIELD_NUMBER: _ClassVar[int]
    SWAPS_ON_OWN_STREAM_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    TENANT_LIMITS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    pool: str
    worker_id: str
    num_blocks: int
    block_size: int
    block_bytes: int
    host_blocks: int
    window: int
    model_fingerprint: str
    watermark_blocks: int
    reuse_regime: _common_pb2.ReuseRegime
    swaps_on_own_stream: bool
    rates: _common_pb2.Rates
    tenant_limits: _containers.RepeatedCompositeFieldContainer[TenantLimit]
    step: int
    def __init__(self, pool: _Optional[str] = ..., worker_id: _Optional[str] = ..., num_blocks: _Optional[int] = ..., block_size: _Optional[int] = ..., block_bytes: _Optional[int] = ..., host_blocks: _Optional[int] = ..., window: _Optional[int] = ..., model_fingerprint: _Optional[str] = ..., watermark_blocks: _Optional[int] = ..., reuse_regime: _Optional[_Union[_common_pb2.ReuseRegime, str]] = ..., swaps_on_own_stream: bool = ..., rates: _Optional[_Union[_common_pb2.Rates, _Mapping]] = ..., tenant_limits: _Optional[_Iterable[_Union[TenantLimit, _Mapping]]] = ..., step: _Optional[int] = ...) -> None: ...

class TenantLimit(_message.Message):
    __slots__ = ("tenant", "soft_blocks", "hard_blocks")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SOFT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HARD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    soft_blocks: int
    hard_blocks: int
    def __init__(self, tenant: _Optional[str] = ..., soft_blocks: _Optional[int] = ..., hard_blocks: _Optional[int] = ...) -> None: ...

class LiveSequences(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[LiveSequence]
    def __init__(self, sequences: _Optional[_Iterable[_Union[LiveSequence, _Mapping]]] = ...) -> None: ...

class LiveSequence(_message.Message):
    __slots__ = ("seq", "token_ids", "computed_tokens", "granted_tokens", "hit_blocks", "table", "host_table", "group", "priority", "arrival", "root", "fork_tokens")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    HOST_TABLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    FORK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    token_ids: bytes
    computed_tokens: int
    granted_tokens: int
    hit_blocks: int
    table: _containers.RepeatedScalarFieldContainer[int]
    host_table: _containers.RepeatedScalarFieldContainer[int]
    group: int
    priority: int
    arrival: int
    root: _common_pb2.PrefixRoot
    fork_tokens: int
    def __init__(self, seq: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., computed_tokens: _Optional[int] = ..., granted_tokens: _Optional[int] = ..., hit_blocks: _Optional[int] = ..., table: _Optional[_Iterable[int]] = ..., host_table: _Optional[_Iterable[int]] = ..., group: _Optional[int] = ..., priority: _Optional[int] = ..., arrival: _Optional[int] = ..., root: _Optional[_Union[_common_pb2.PrefixRoot, _Mapping]] = ..., fork_tokens: _Optional[int] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("header", "lease_ms", "stats", "adopted", "recompute")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    lease_ms: int
    stats: _common_pb2.PoolStats
    adopted: _containers.RepeatedScalarFieldContainer[int]
    recompute: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., lease_ms: _Optional[int] = ..., stats: _Optional[_Union[_common_pb2.PoolStats, _Mapping]] = ..., adopted: _Optional[_Iterable[int]] = ..., recompute: _Optional[_Iterable[int]] = ...) -> None: ...

class DetachRequest(_message.Message):
    __slots__ = ("pool", "epoch")
    POOL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    pool: str
    epoch: int
    def __init__(self, pool: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class DetachResponse(_message.Message):
    __slots__ = ("header", "dropped_sequences")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DROPPED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    dropped_sequences: int
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., dropped_sequences: _Optional[int] = ...) -> None: ...
