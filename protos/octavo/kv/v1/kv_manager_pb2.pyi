from octavo.kv.v1 import attach_pb2 as _attach_pb2
from octavo.kv.v1 import common_pb2 as _common_pb2
from octavo.kv.v1 import inspect_pb2 as _inspect_pb2
from octavo.kv.v1 import lookup_pb2 as _lookup_pb2
from octavo.kv.v1 import steps_pb2 as _steps_pb2
from octavo.kv.v1 import watch_pb2 as _watch_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResetPrefixCacheRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class ResetPrefixCacheResponse(_message.Message):
    __slots__ = ("header", "cleared_blocks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CLEARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    cleared_blocks: int
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., cleared_blocks: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("header", "live_sequences")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    LIVE_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ResponseHeader
    live_sequences: int
    def __init__(self, header: _Optional[_Union[_common_pb2.ResponseHeader, _Mapping]] = ..., live_sequences: _Optional[int] = ...) -> None: ...
