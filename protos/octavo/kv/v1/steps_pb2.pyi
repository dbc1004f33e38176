from octavo.kv.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReleaseReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RELEASE_REASON_UNSPECIFIED: _ClassVar[ReleaseReason]
    RELEASE_REASON_FINISHED: _ClassVar[ReleaseReason]
    RELEASE_REASON_ABORTED: _ClassVar[ReleaseReason]
    RELEASE_REASON_FAILED: _ClassVar[ReleaseReason]

class PreemptionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREEMPTION_MODE_UNSPECIFIED: _ClassVar[PreemptionMode]
    PREEMPTION_MODE_RECOMPUTE: _ClassVar[PreemptionMode]
    PREEMPTION_MODE_SWAP: _ClassVar[PreemptionMode]

class PreemptionReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREEMPTION_REASON_UNSPECIFIED: _ClassVar[PreemptionReason]
    PREEMPTION_REASON_POOL: _ClassVar[PreemptionReason]
    PREEMPTION_REASON_TENANT_LIMIT: _ClassVar[PreemptionReason]
    PREEMPTION_REASON_HOST_ROOM: _ClassVar[PreemptionReason]

class WaitingReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAITING_REASON_UNSPECIFIED: _ClassVar[WaitingReason]
    WAITING_REASON_POOL: _ClassVar[WaitingReason]
    WAITING_REASON_FENCE: _ClassVar[WaitingReason]
    WAITING_REASON_TENANT_LIMIT: _ClassVar[WaitingReason]
    WAITING_REASON_BEHIND: _ClassVar[WaitingReason]
    WAITING_REASON_SWAPPING: _ClassVar[WaitingReason]
    WAITING_REASON_DRAINING: _ClassVar[WaitingReason]

class RejectedReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REJECTED_REASON_UNSPECIFIED: _ClassVar[RejectedReason]
    REJECTED_REASON_POOL: _ClassVar[RejectedReason]
    REJECTED_REASON_TENANT_LIMIT: _ClassVar[RejectedReason]
RELEASE_REASON_UNSPECIFIED: ReleaseReason
RELEASE_REASON_FINISHED: ReleaseReason
RELEASE_REASON_ABORTED: ReleaseReason
RELEASE_REASON_FAILED: ReleaseReason
PREEMPTION_MODE_UNSPECIFIED: PreemptionMode
PREEMPTION_MODE_RECOMPUTE: PreemptionMode
PREEMPTION_MODE_SWAP: PreemptionMode
PREEMPTION_REASON_UNSPECIFIED: PreemptionReason
PREEMPTION_REASON_POOL: PreemptionReason
PREEMPTION_REASON_TENANT_LIMIT: PreemptionReason
PREEMPTION_REASON_HOST_ROOM: PreemptionReason
WAITING_REASON_UNSPECIFIED: WaitingReason
WAITING_REASON_POOL: WaitingReason
WAITING_REASON_FENCE: WaitingReason
WAITING_REASON_TENANT_LIMIT: WaitingReason
WAITING_REASON_BEHIND: WaitingReason
WAITING_REASON_SWAPPING: WaitingReason
WAITING_REASON_DRAINING: WaitingReason
REJECTED_REASON_UNSPECIFIED: RejectedReason
REJECTED_REASON_POOL: RejectedReason
REJECTED_REASON_TENANT_LIMIT: RejectedReason

class StepRequest(_message.Message):
    __slots__ = ("pool", "epoch", "step", "completed_step", "failed_step", "commits", "forks", "releases", "advances", "resumes", "admits", "rates")
    POOL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_STEP_FIELD_NUMBER: _ClassVar[int]
    FAILED_STEP_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    ADVANCES_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    ADMITS_FIELD_NUMBER: _ClassVar[int]
    RATES_FIELD_NUMBER: _ClassVar[int]
    pool: str
    epoch: int
    step: int
    completed_step: int
    failed_step: int
    commits: Commits
    forks: _containers.RepeatedCompositeFieldContainer[Fork]
    releases: _containers.RepeatedCompositeFieldContainer[Release]
    advances: Advances
    resumes: _containers.RepeatedCompositeFieldContainer[Resume]
    admits: _containers.RepeatedCompositeFieldContainer[Admit]
    rates: _common_pb2.Rates
    def __init__(self, pool: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., completed_step: _Optional[int] = ..., failed_step: _Optional[int] = ..., commits: _Optional[_Union[Commits, _Mapping]] = ..., forks: _Optional[_Iterable[_Union[Fork, _Mapping]]] = ..., releases: _Optional[_Iterable[_Union[Release, _Mapping]]] = ..., advances: _Optional[_Union[Advances, _Mapping]] = ..., resumes: _Optional[_Iterable[_Union[Resume, _Mapping]]] = ..., admits: _Optional[_Iterable[_Union[Admit, _Mapping]]] = ..., rates: _Optional[_Union[_common_pb2.Rates, _Mapping]] = ...) -> None: ...

class Commits(_message.Message):
    __slots__ = ("seqs", "starts", "counts", "token_ids")
    SEQS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    seqs: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    token_ids: bytes
    def __init__(self, seqs: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class Fork(_message.Message):
    __slots__ = ("parent", "children", "num_tokens")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    parent: int
    children: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: int
    def __init__(self, parent: _Optional[int] = ..., children: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("seq", "reason")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    seq: int
    reason: ReleaseReason
    def __init__(self, seq: _Optional[int] = ..., reason: _Optional[_Union[ReleaseReason, str]] = ...) -> None: ...

class Advances(_message.Message):
    __slots__ = ("seqs", "num_tokens", "rooms")
    SEQS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROOMS_FIELD_NUMBER: _ClassVar[int]
    seqs: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    rooms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seqs: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., rooms: _Optional[_Iterable[int]] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("seq", "num_tokens")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    num_tokens: int
    def __init__(self, seq: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class Admit(_message.Message):
    __slots__ = ("seq", "token_ids", "num_tokens", "group", "beside_blocks", "priority", "arrival", "root", "again")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BESIDE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    seq: int
    token_ids: bytes
    num_tokens: int
    group: int
    beside_blocks: int
    priority: int
    arrival: int
    root: _common_pb2.PrefixRoot
    again: bool
    def __init__(self, seq: _Optional[int] = ..., token_ids: _Optional[bytes] = ..., num_tokens: _Optional[int] = ..., group: _Optional[int] = ..., beside_blocks: _Optional[int] = ..., priority: _Optional[int] = ..., arrival: _Optional[int] = ..., root: _Optional[_Union[_common_pb2.PrefixRoot, _Mapping]] = ..., again: bool = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("header", "grants", "replaced", "copies", "swaps_out", "swaps_in", "preempted", "waiting", "rejected", "stats")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    SWAPS_OUT_FIELD_NUMBER: _ClassVar[int]
    SWAPS_IN_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    replaced: Replacements
    copies: BlockMoves
    swaps_out: BlockMoves
    swaps_in: BlockMoves
    preempted: _containers.RepeatedCompositeFieldContainer[Preempted]
    waiting: _containers.RepeatedCompositeFieldContainer[Waiting]
    rejected: _containers.RepeatedCompositeFieldContainer[Rejected]
    stats: _common_pb2.PoolStats
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., replaced: _Optional[_Union[Replacements, _Mapping]] = ..., copies: _Optional[_Union[BlockMoves, _Mapping]] = ..., swaps_out: _Optional[_Union[BlockMoves, _Mapping]] = ..., swaps_in: _Optional[_Union[BlockMoves, _Mapping]] = ..., preempted: _Optional[_Iterable[_Union[Preempted, _Mapping]]] = ..., waiting: _Optional[_Iterable[_Union[Waiting, _Mapping]]] = ..., rejected: _Optional[_Iterable[_Union[Rejected, _Mapping]]] = ..., stats: _Optional[_Union[_common_pb2.PoolStats, _Mapping]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("seq", "first_index", "blocks", "cached_tokens", "hit_blocks", "granted_tokens")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    first_index: int
    blocks: _containers.RepeatedScalarFieldContainer[int]
    cached_tokens: int
    hit_blocks: int
    granted_tokens: int
    def __init__(self, seq: _Optional[int] = ..., first_index: _Optional[int] = ..., blocks: _Optional[_Iterable[int]] = ..., cached_tokens: _Optional[int] = ..., hit_blocks: _Optional[int] = ..., granted_tokens: _Optional[int] = ...) -> None: ...

class Replacements(_message.Message):
    __slots__ = ("seqs", "indexes", "blocks")
    SEQS_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    seqs: _containers.RepeatedScalarFieldContainer[int]
    indexes: _containers.RepeatedScalarFieldContainer[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seqs: _Optional[_Iterable[int]] = ..., indexes: _Optional[_Iterable[int]] = ..., blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class BlockMoves(_message.Message):
    __slots__ = ("sources", "destinations")
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    DESTINATIONS_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedScalarFieldContainer[int]
    destinations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sources: _Optional[_Iterable[int]] = ..., destinations: _Optional[_Iterable[int]] = ...) -> None: ...

class Preempted(_message.Message):
    __slots__ = ("seq", "mode", "reason", "requester", "recompute_seconds", "swap_seconds")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUESTER_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SWAP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    mode: PreemptionMode
    reason: PreemptionReason
    requester: int
    recompute_seconds: float
    swap_seconds: float
    def __init__(self, seq: _Optional[int] = ..., mode: _Optional[_Union[PreemptionMode, str]] = ..., reason: _Optional[_Union[PreemptionReason, str]] = ..., requester: _Optional[int] = ..., recompute_seconds: _Optional[float] = ..., swap_seconds: _Optional[float] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("seq", "reason", "needed")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    seq: int
    reason: WaitingReason
    needed: int
    def __init__(self, seq: _Optional[int] = ..., reason: _Optional[_Union[WaitingReason, str]] = ..., needed: _Optional[int] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("seq", "needed", "available", "reason")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    seq: int
    needed: int
    available: int
    reason: RejectedReason
    def __init__(self, seq: _Optional[int] = ..., needed: _Optional[int] = ..., available: _Optional[int] = ..., reason: _Optional[_Union[RejectedReason, str]] = ...) -> None: ...
