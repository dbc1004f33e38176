from octavo.kv.v1 import attach_pb2 as _attach_pb2
from octavo.kv.v1 import inspect_pb2 as _inspect_pb2
from octavo.kv.v1 import kv_manager_pb2 as _kv_manager_pb2
from octavo.kv.v1 import steps_pb2 as _steps_pb2
from octavo.kv.v1 import watch_pb2 as _watch_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Record(_message.Message):
    __slots__ = ("header", "attach", "step", "detach", "reset", "drain", "expiry", "watched", "looked")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DETACH_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    EXPIRY_FIELD_NUMBER: _ClassVar[int]
    WATCHED_FIELD_NUMBER: _ClassVar[int]
    LOOKED_FIELD_NUMBER: _ClassVar[int]
    header: RecordHeader
    attach: RecordedAttach
    step: RecordedStep
    detach: RecordedDetach
    reset: RecordedReset
    drain: RecordedDrain
    expiry: PoolExpiry
    watched: RecordedWatch
    looked: RecordedLook
    def __init__(self, header: _Optional[_Union[RecordHeader, _Mapping]] = ..., attach: _Optional[_Union[RecordedAttach, _Mapping]] = ..., step: _Optional[_Union[RecordedStep, _Mapping]] = ..., detach: _Optional[_Union[RecordedDetach, _Mapping]] = ..., reset: _Optional[_Union[RecordedReset, _Mapping]] = ..., drain: _Optional[_Union[RecordedDrain, _Mapping]] = ..., expiry: _Optional[_Union[PoolExpiry, _Mapping]] = ..., watched: _Optional[_Union[RecordedWatch, _Mapping]] = ..., looked: _Optional[_Union[RecordedLook, _Mapping]] = ...) -> None: ...

class RecordHeader(_message.Message):
    __slots__ = ("format_version", "manager_id", "program")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    MANAGER_ID_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    manager_id: str
    program: str
    def __init__(self, format_version: _Optional[int] = ..., manager_id: _Optional[str] = ..., program: _Optional[str] = ...) -> None: ...

class RecordedAttach(_message.Message):
    __slots__ = ("parts", "response")
    PARTS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[_attach_pb2.AttachRequest]
    response: _attach_pb2.AttachResponse
    def __init__(self, parts: _Optional[_Iterable[_Union[_attach_pb2.AttachRequest, _Mapping]]] = ..., response: _Optional[_Union[_attach_pb2.AttachResponse, _Mapping]] = ...) -> None: ...

class RecordedStep(_message.Message):
    __slots__ = ("request", "response")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    request: _steps_pb2.StepRequest
    response: _steps_pb2.StepResponse
    def __init__(self, request: _Optional[_Union[_steps_pb2.StepRequest, _Mapping]] = ..., response: _Optional[_Union[_steps_pb2.StepResponse, _Mapping]] = ...) -> None: ...

class RecordedDetach(_message.Message):
    __slots__ = ("request", "response")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    request: _attach_pb2.DetachRequest
    response: _attach_pb2.DetachResponse
    def __init__(self, request: _Optional[_Union[_attach_pb2.DetachRequest, _Mapping]] = ..., response: _Optional[_Union[_attach_pb2.DetachResponse, _Mapping]] = ...) -> None: ...

class RecordedReset(_message.Message):
    __slots__ = ("request", "response")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    request: _kv_manager_pb2.ResetPrefixCacheRequest
    response: _kv_manager_pb2.ResetPrefixCacheResponse
    def __init__(self, request: _Optional[_Union[_kv_manager_pb2.ResetPrefixCacheRequest, _Mapping]] = ..., response: _Optional[_Union[_kv_manager_pb2.ResetPrefixCacheResponse, _Mapping]] = ...) -> None: ...

class RecordedDrain(_message.Message):
    __slots__ = ("request", "response")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    request: _kv_manager_pb2.DrainRequest
    response: _kv_manager_pb2.DrainResponse
    def __init__(self, request: _Optional[_Union[_kv_manager_pb2.DrainRequest, _Mapping]] = ..., response: _Optional[_Union[_kv_manager_pb2.DrainResponse, _Mapping]] = ...) -> None: ...

class PoolExpiry(_message.Message):
    __slots__ = ("pool", "epoch")
    POOL_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    pool: str
    epoch: int
    def __init__(self, pool: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class RecordedWatch(_message.Message):
    __slots__ = ("at_ms", "response")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    response: _watch_pb2.WatchResponse
    def __init__(self, at_ms: _Optional[int] = ..., response: _Optional[_Union[_watch_pb2.WatchResponse, _Mapping]] = ...) -> None: ...

class RecordedLook(_message.Message):
    __slots__ = ("at_ms", "response")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    response: _inspect_pb2.InspectPoolResponse
    def __init__(self, at_ms: _Optional[int] = ..., response: _Optional[_Union[_inspect_pb2.InspectPoolResponse, _Mapping]] = ...) -> None: ...
