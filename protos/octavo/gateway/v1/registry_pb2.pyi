from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterRequest(_message.Message):
    __slots__ = ("address", "worker_id", "leaving")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    address: str
    worker_id: str
    leaving: bool
    def __init__(self, address: _Optional[str] = ..., worker_id: _Optional[str] = ..., leaving: bool = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("address", "lease_ms")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    address: str
    lease_ms: int
    def __init__(self, address: _Optional[str] = ..., lease_ms: _Optional[int] = ...) -> None: ...
