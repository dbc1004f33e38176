from octavo.kv.v1 import common_pb2 as _common_pb2
from octavo.kv.v1 import inspect_pb2 as _inspect_pb2
from octavo.kv.v1 import steps_pb2 as _steps_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_KIND_UNSPECIFIED: _ClassVar[EventKind]
    EVENT_KIND_CACHE: _ClassVar[EventKind]
    EVENT_KIND_BLOCKS: _ClassVar[EventKind]
    EVENT_KIND_TABLES: _ClassVar[EventKind]
    EVENT_KIND_SEQUENCES: _ClassVar[EventKind]

class SequenceEventType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEQUENCE_EVENT_TYPE_UNSPECIFIED: _ClassVar[SequenceEventType]
    SEQUENCE_EVENT_TYPE_ADMITTED: _ClassVar[SequenceEventType]
    SEQUENCE_EVENT_TYPE_READMITTED: _ClassVar[SequenceEventType]
    SEQUENCE_EVENT_TYPE_FORKED: _ClassVar[SequenceEventType]
    SEQUENCE_EVENT_TYPE_PREEMPTED: _ClassVar[SequenceEventType]
    SEQUENCE_EVENT_TYPE_RESUMED: _ClassVar[SequenceEventType]
    SEQUENCE_EVENT_TYPE_RELEASED: _ClassVar[SequenceEventType]
    SEQUENCE_EVENT_TYPE_REJECTED: _ClassVar[SequenceEventType]
EVENT_KIND_UNSPECIFIED: EventKind
EVENT_KIND_CACHE: EventKind
EVENT_KIND_BLOCKS: EventKind
EVENT_KIND_TABLES: EventKind
EVENT_KIND_SEQUENCES: EventKind
SEQUENCE_EVENT_TYPE_UNSPECIFIED: SequenceEventType
SEQUENCE_EVENT_TYPE_ADMITTED: SequenceEventType
SEQUENCE_EVENT_TYPE_READMITTED: SequenceEventType
SEQUENCE_EVENT_TYPE_FORKED: SequenceEventType
SEQUENCE_EVENT_TYPE_PREEMPTED: SequenceEventType
SEQUENCE_EVENT_TYPE_RESUMED: SequenceEventType
SEQUENCE_EVENT_TYPE_RELEASED: SequenceEventType
SEQUENCE_EVENT_TYPE_REJECTED: SequenceEventType

class WatchRequest(_message.Message):
    __slots__ = ("pool", "kinds", "after", "include_token_ids", "batch_ms")
    POOL_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BATCH_MS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    kinds: _containers.RepeatedScalarFieldContainer[EventKind]
    after: WatchPosition
    include_token_ids: bool
    batch_ms: int
    def __init__(self, pool: _Optional[str] = ..., kinds: _Optional[_Iterable[_Union[EventKind, str]]] = ..., after: _Optional[_Union[WatchPosition, _Mapping]] = ..., include_token_ids: bool = ..., batch_ms: _Optional[int] = ...) -> None: ...

class WatchPosition(_message.Message):
    __slots__ = ("manager_id", "epoch", "sequence", "kinds")
    MANAGER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    manager_id: str
    epoch: int
    sequence: int
    kinds: _containers.RepeatedScalarFieldContainer[EventKind]
    def __init__(self, manager_id: _Optional[str] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., kinds: _Optional[_Iterable[_Union[EventKind, str]]] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("header", "sequence", "snapshot", "stored", "removed", "cleared", "blocks", "table", "sequence_event", "pool_dropped", "batch")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_EVENT_FIELD_NUMBER: _ClassVar[int]
    POOL_DROPPED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    sequence: int
    snapshot: Snapshot
    stored: DigestsStored
    removed: DigestsRemoved
    cleared: CacheCleared
    blocks: BlocksChanged
    table: TableChanged
    sequence_event: SequenceEvent
    pool_dropped: PoolDropped
    batch: WatchBatch
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., sequence: _Optional[int] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., stored: _Optional[_Union[DigestsStored, _Mapping]] = ..., removed: _Optional[_Union[DigestsRemoved, _Mapping]] = ..., cleared: _Optional[_Union[CacheCleared, _Mapping]] = ..., blocks: _Optional[_Union[BlocksChanged, _Mapping]] = ..., table: _Optional[_Union[TableChanged, _Mapping]] = ..., sequence_event: _Optional[_Union[SequenceEvent, _Mapping]] = ..., pool_dropped: _Optional[_Union[PoolDropped, _Mapping]] = ..., batch: _Optional[_Union[WatchBatch, _Mapping]] = ...) -> None: ...

class WatchBatch(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[WatchResponse]
    def __init__(self, events: _Optional[_Iterable[_Union[WatchResponse, _Mapping]]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("digests", "blocks", "sequences", "last")
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    blocks: _containers.RepeatedCompositeFieldContainer[_inspect_pb2.BlockInfo]
    sequences: _containers.RepeatedCompositeFieldContainer[_inspect_pb2.SequenceSummary]
    last: bool
    def __init__(self, digests: _Optional[_Iterable[bytes]] = ..., blocks: _Optional[_Iterable[_Union[_inspect_pb2.BlockInfo, _Mapping]]] = ..., sequences: _Optional[_Iterable[_Union[_inspect_pb2.SequenceSummary, _Mapping]]] = ..., last: bool = ...) -> None: ...

class DigestsStored(_message.Message):
    __slots__ = ("parent", "digests", "token_ids")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    token_ids: bytes
    def __init__(self, parent: _Optional[bytes] = ..., digests: _Optional[_Iterable[bytes]] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class DigestsRemoved(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class CacheCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BlocksChanged(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[_inspect_pb2.BlockInfo]
    def __init__(self, blocks: _Optional[_Iterable[_Union[_inspect_pb2.BlockInfo, _Mapping]]] = ...) -> None: ...

class TableChanged(_message.Message):
    __slots__ = ("seq", "first_index", "blocks")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    first_index: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seq: _Optional[int] = ..., first_index: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class SequenceEvent(_message.Message):
    __slots__ = ("summary", "type", "cached_tokens", "preempted")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    summary: _inspect_pb2.SequenceSummary
    type: SequenceEventType
    cached_tokens: int
    preempted: _steps_pb2.Preempted
    def __init__(self, summary: _Optional[_Union[_inspect_pb2.SequenceSummary, _Mapping]] = ..., type: _Optional[_Union[SequenceEventType, str]] = ..., cached_tokens: _Optional[int] = ..., preempted: _Optional[_Union[_steps_pb2.Preempted, _Mapping]] = ...) -> None: ...

class PoolDropped(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
