from octavo.kv.v1 import attach_pb2 as _attach_pb2
from octavo.kv.v1 import common_pb2 as _common_pb2
from octavo.kv.v1 import steps_pb2 as _steps_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Capability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPABILITY_UNSPECIFIED: _ClassVar[Capability]
    CAPABILITY_PREFIX_SHARING: _ClassVar[Capability]
    CAPABILITY_FORK: _ClassVar[Capability]
    CAPABILITY_PREEMPTION: _ClassVar[Capability]
    CAPABILITY_HOST_TIER: _ClassVar[Capability]
    CAPABILITY_FENCED_REUSE: _ClassVar[Capability]
    CAPABILITY_FAILED_STEPS: _ClassVar[Capability]
    CAPABILITY_LATE_HITS: _ClassVar[Capability]
    CAPABILITY_ROOM_AHEAD: _ClassVar[Capability]
    CAPABILITY_GROUPS: _ClassVar[Capability]
    CAPABILITY_WINDOWS: _ClassVar[Capability]
    CAPABILITY_TENANT_LIMITS: _ClassVar[Capability]
    CAPABILITY_ADOPTION: _ClassVar[Capability]
    CAPABILITY_WATCH: _ClassVar[Capability]
    CAPABILITY_DRAIN: _ClassVar[Capability]
    CAPABILITY_RESET: _ClassVar[Capability]

class SequenceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEQUENCE_STATE_UNSPECIFIED: _ClassVar[SequenceState]
    SEQUENCE_STATE_RUNNING: _ClassVar[SequenceState]
    SEQUENCE_STATE_SWAPPED: _ClassVar[SequenceState]

class BlockState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_STATE_UNSPECIFIED: _ClassVar[BlockState]
    BLOCK_STATE_NULL: _ClassVar[BlockState]
    BLOCK_STATE_FREE: _ClassVar[BlockState]
    BLOCK_STATE_CACHED: _ClassVar[BlockState]
    BLOCK_STATE_REFERENCED: _ClassVar[BlockState]
    BLOCK_STATE_FENCED: _ClassVar[BlockState]
CAPABILITY_UNSPECIFIED: Capability
CAPABILITY_PREFIX_SHARING: Capability
CAPABILITY_FORK: Capability
CAPABILITY_PREEMPTION: Capability
CAPABILITY_HOST_TIER: Capability
CAPABILITY_FENCED_REUSE: Capability
CAPABILITY_FAILED_STEPS: Capability
CAPABILITY_LATE_HITS: Capability
CAPABILITY_ROOM_AHEAD: Capability
CAPABILITY_GROUPS: Capability
CAPABILITY_WINDOWS: Capability
CAPABILITY_TENANT_LIMITS: Capability
CAPABILITY_ADOPTION: Capability
CAPABILITY_WATCH: Capability
CAPABILITY_DRAIN: Capability
CAPABILITY_RESET: Capability
SEQUENCE_STATE_UNSPECIFIED: SequenceState
SEQUENCE_STATE_RUNNING: SequenceState
SEQUENCE_STATE_SWAPPED: SequenceState
BLOCK_STATE_UNSPECIFIED: BlockState
BLOCK_STATE_NULL: BlockState
BLOCK_STATE_FREE: BlockState
BLOCK_STATE_CACHED: BlockState
BLOCK_STATE_REFERENCED: BlockState
BLOCK_STATE_FENCED: BlockState

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("header", "version", "capabilities", "max_message_bytes", "lease_ms")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    version: str
    capabilities: _containers.RepeatedScalarFieldContainer[Capability]
    max_message_bytes: int
    lease_ms: int
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., version: _Optional[str] = ..., capabilities: _Optional[_Iterable[_Union[Capability, str]]] = ..., max_message_bytes: _Optional[int] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class ListPoolsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPoolsResponse(_message.Message):
    __slots__ = ("header", "pools")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    pools: _containers.RepeatedCompositeFieldContainer[PoolSummary]
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., pools: _Optional[_Iterable[_Union[PoolSummary, _Mapping]]] = ...) -> None: ...

class PoolSummary(_message.Message):
    __slots__ = ("header", "spec", "stats", "totals", "completed_step", "connected", "lease_remaining_ms", "draining")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_STEP_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LEASE_REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    spec: _attach_pb2.PoolSpec
    stats: _common_pb2.PoolStats
    totals: _common_pb2.PoolTotals
    completed_step: int
    connected: bool
    lease_remaining_ms: int
    draining: bool
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., spec: _Optional[_Union[_attach_pb2.PoolSpec, _Mapping]] = ..., stats: _Optional[_Union[_common_pb2.PoolStats, _Mapping]] = ..., totals: _Optional[_Union[_common_pb2.PoolTotals, _Mapping]] = ..., completed_step: _Optional[int] = ..., connected: bool = ..., lease_remaining_ms: _Optional[int] = ..., draining: bool = ...) -> None: ...

class SequenceSummary(_message.Message):
    __slots__ = ("seq", "state", "granted_tokens", "committed_tokens", "num_blocks", "group", "priority", "arrival", "root")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    seq: int
    state: SequenceState
    granted_tokens: int
    committed_tokens: int
    num_blocks: int
    group: int
    priority: int
    arrival: int
    root: _common_pb2.PrefixRoot
    def __init__(self, seq: _Optional[int] = ..., state: _Optional[_Union[SequenceState, str]] = ..., granted_tokens: _Optional[int] = ..., committed_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., group: _Optional[int] = ..., priority: _Optional[int] = ..., arrival: _Optional[int] = ..., root: _Optional[_Union[_common_pb2.PrefixRoot, _Mapping]] = ...) -> None: ...

class InspectPoolRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class InspectPoolResponse(_message.Message):
    __slots__ = ("summary", "sequences", "recent_preemptions")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    RECENT_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    summary: PoolSummary
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceSummary]
    recent_preemptions: _containers.RepeatedCompositeFieldContainer[PreemptionRecord]
    def __init__(self, summary: _Optional[_Union[PoolSummary, _Mapping]] = ..., sequences: _Optional[_Iterable[_Union[SequenceSummary, _Mapping]]] = ..., recent_preemptions: _Optional[_Iterable[_Union[PreemptionRecord, _Mapping]]] = ...) -> None: ...

class PreemptionRecord(_message.Message):
    __slots__ = ("step", "preempted")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    step: int
    preempted: _steps_pb2.Preempted
    def __init__(self, step: _Optional[int] = ..., preempted: _Optional[_Union[_steps_pb2.Preempted, _Mapping]] = ...) -> None: ...

class InspectSequenceRequest(_message.Message):
    __slots__ = ("pool", "seq")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    pool: str
    seq: int
    def __init__(self, pool: _Optional[str] = ..., seq: _Optional[int] = ...) -> None: ...

class InspectSequenceResponse(_message.Message):
    __slots__ = ("header", "summary", "table", "host_table")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    HOST_TABLE_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    summary: SequenceSummary
    table: _containers.RepeatedCompositeFieldContainer[BlockInfo]
    host_table: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., summary: _Optional[_Union[SequenceSummary, _Mapping]] = ..., table: _Optional[_Iterable[_Union[BlockInfo, _Mapping]]] = ..., host_table: _Optional[_Iterable[int]] = ...) -> None: ...

class BlockInfo(_message.Message):
    __slots__ = ("block", "state", "ref_count", "digest", "fence", "owners")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REF_COUNT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    block: int
    state: BlockState
    ref_count: int
    digest: bytes
    fence: int
    owners: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, block: _Optional[int] = ..., state: _Optional[_Union[BlockState, str]] = ..., ref_count: _Optional[int] = ..., digest: _Optional[bytes] = ..., fence: _Optional[int] = ..., owners: _Optional[_Iterable[int]] = ...) -> None: ...

class InspectBlocksRequest(_message.Message):
    __slots__ = ("pool", "first_block", "count")
    POOL_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    pool: str
    first_block: int
    count: int
    def __init__(self, pool: _Optional[str] = ..., first_block: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class InspectBlocksResponse(_message.Message):
    __slots__ = ("header", "blocks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    blocks: _containers.RepeatedCompositeFieldContainer[BlockInfo]
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., blocks: _Optional[_Iterable[_Union[BlockInfo, _Mapping]]] = ...) -> None: ...

class CheckIntegrityRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class CheckIntegrityResponse(_message.Message):
    __slots__ = ("header", "violations", "state_digest")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    violations: _containers.RepeatedScalarFieldContainer[str]
    state_digest: bytes
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., violations: _Optional[_Iterable[str]] = ..., state_digest: _Optional[bytes] = ...) -> None: ...
