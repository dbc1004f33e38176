from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("address", "worker_id", "model", "pool", "trouble", "left_out", "samples", "load_tokens", "max_sequences")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    address: str
    worker_id: str
    model: str
    pool: str
    trouble: str
    left_out: bool
    samples: int
    load_tokens: int
    max_sequences: int
    def __init__(self, address: _Optional[str] = ..., worker_id: _Optional[str] = ..., model: _Optional[str] = ..., pool: _Optional[str] = ..., trouble: _Optional[str] = ..., left_out: bool = ..., samples: _Optional[int] = ..., load_tokens: _Optional[int] = ..., max_sequences: _Optional[int] = ...) -> None: ...

class ListTenantsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTenantsResponse(_message.Message):
    __slots__ = ("tenants", "unauthenticated_calls")
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    UNAUTHENTICATED_CALLS_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStatus]
    unauthenticated_calls: int
    def __init__(self, tenants: _Optional[_Iterable[_Union[TenantStatus, _Mapping]]] = ..., unauthenticated_calls: _Optional[int] = ...) -> None: ...

class TenantStatus(_message.Message):
    __slots__ = ("tenant", "operator", "running_calls", "waiting_requests", "calls", "refused_requests", "prompt_tokens", "generated_tokens", "wait_seconds", "tokens_left", "tokens_per_minute", "concurrent_requests", "requests_per_second")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    RUNNING_CALLS_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_LEFT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    CONCURRENT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    operator: bool
    running_calls: int
    waiting_requests: int
    calls: int
    refused_requests: int
    prompt_tokens: int
    generated_tokens: int
    wait_seconds: float
    tokens_left: float
    tokens_per_minute: float
    concurrent_requests: int
    requests_per_second: float
    def __init__(self, tenant: _Optional[str] = ..., operator: bool = ..., running_calls: _Optional[int] = ..., waiting_requests: _Optional[int] = ..., calls: _Optional[int] = ..., refused_requests: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., tokens_left: _Optional[float] = ..., tokens_per_minute: _Optional[float] = ..., concurrent_requests: _Optional[int] = ..., requests_per_second: _Optional[float] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("running_calls",)
    RUNNING_CALLS_FIELD_NUMBER: _ClassVar[int]
    running_calls: int
    def __init__(self, running_calls: _Optional[int] = ...) -> None: ...
