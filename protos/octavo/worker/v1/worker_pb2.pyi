from octavo.worker.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ResponseHeader(_message.Message):
    __slots__ = ("worker_id", "request_id", "step")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    request_id: str
    step: int
    def __init__(self, worker_id: _Optional[str] = ..., request_id: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "token_ids", "sampling", "stop", "n", "best_of", "beam_search", "logprobs", "prompt_logprobs", "priority", "tenant", "salt", "adapter", "resume")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    BEAM_SEARCH_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _sampling_pb2.SamplingParams
    stop: _sampling_pb2.StopConditions
    n: int
    best_of: int
    beam_search: _sampling_pb2.BeamSearch
    logprobs: int
    prompt_logprobs: int
    priority: int
    tenant: str
    salt: str
    adapter: str
    resume: Resume
    def __init__(self, request_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., stop: _Optional[_Union[_sampling_pb2.StopConditions, _Mapping]] = ..., n: _Optional[int] = ..., best_of: _Optional[int] = ..., beam_search: _Optional[_Union[_sampling_pb2.BeamSearch, _Mapping]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., salt: _Optional[str] = ..., adapter: _Optional[str] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("seed", "samples")
    SEED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    seed: int
    samples: _containers.RepeatedCompositeFieldContainer[ResumedSample]
    def __init__(self, seed: _Optional[int] = ..., samples: _Optional[_Iterable[_Union[ResumedSample, _Mapping]]] = ...) -> None: ...

class ResumedSample(_message.Message):
    __slots__ = ("index", "token_ids")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("header", "index", "token_ids", "logprobs", "started", "finished")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprobs]
    started: Started
    finished: Finished
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprobs, _Mapping]]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("seed", "prompt_tokens", "cached_tokens", "prompt_logprobs", "queue_seconds")
    SEED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    seed: int
    prompt_tokens: int
    cached_tokens: int
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.TokenLogprobs]
    queue_seconds: float
    def __init__(self, seed: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_sampling_pb2.TokenLogprobs, _Mapping]]] = ..., queue_seconds: _Optional[float] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "stop_token_id", "cumulative_logprob", "stats")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    reason: _sampling_pb2.FinishReason
    stop_token_id: int
    cumulative_logprob: float
    stats: RequestStats
    def __init__(self, reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., cumulative_logprob: _Optional[float] = ..., stats: _Optional[_Union[RequestStats, _Mapping]] = ...) -> None: ...

class RequestStats(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens", "completion_tokens", "prefill_chunks", "steps", "max_batch", "mixed_steps", "refusals", "recomputes", "swaps", "queue_seconds", "first_token_seconds", "total_seconds")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    MIXED_STEPS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTES_FIELD_NUMBER: _ClassVar[int]
    SWAPS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_chunks: int
    steps: int
    max_batch: int
    mixed_steps: int
    refusals: int
    recomputes: int
    swaps: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., prefill_chunks: _Optional[int] = ..., steps: _Optional[int] = ..., max_batch: _Optional[int] = ..., mixed_steps: _Optional[int] = ..., refusals: _Optional[int] = ..., recomputes: _Optional[int] = ..., swaps: _Optional[int] = ..., queue_seconds: _Optional[float] = ..., first_token_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("header", "found")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    found: bool
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., found: bool = ...) -> None: ...

class AbortSamplesRequest(_message.Message):
    __slots__ = ("request_id", "indexes")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    indexes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request_id: _Optional[str] = ..., indexes: _Optional[_Iterable[int]] = ...) -> None: ...

class AbortSamplesResponse(_message.Message):
    __slots__ = ("header", "found")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    found: bool
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., found: bool = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("header", "model", "architecture", "model_fingerprint", "vocab_size", "max_context", "eos_token_ids", "bos_token_id", "dtype", "kv_dtype", "device", "pool", "block_size", "num_blocks", "block_bytes", "max_batch_tokens", "max_sequences")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BOS_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    model: str
    architecture: str
    model_fingerprint: str
    vocab_size: int
    max_context: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bos_token_id: int
    dtype: str
    kv_dtype: str
    device: str
    pool: str
    block_size: int
    num_blocks: int
    block_bytes: int
    max_batch_tokens: int
    max_sequences: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., model: _Optional[str] = ..., architecture: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_context: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., bos_token_id: _Optional[int] = ..., dtype: _Optional[str] = ..., kv_dtype: _Optional[str] = ..., device: _Optional[str] = ..., pool: _Optional[str] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., block_bytes: _Optional[int] = ..., max_batch_tokens: _Optional[int] = ..., max_sequences: _Optional[int] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("name", "size", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    data: bytes
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("header", "ready", "state", "waiting_requests", "running_requests", "epoch", "num_blocks", "referenced_blocks", "peak_referenced_blocks", "cached_blocks", "steps", "prompt_tokens", "cached_tokens", "computed_tokens", "generated_tokens", "finished_requests", "aborted_requests", "aborted_waiting", "aborted_in_prefill", "aborted_in_decode", "delayed_requests", "prefix_hits", "preemptions", "reattaches", "step_seconds", "manager_wait_seconds", "swaps", "swap_failures", "forks")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PEAK_REFERENCED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ABORTED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ABORTED_WAITING_FIELD_NUMBER: _ClassVar[int]
    ABORTED_IN_PREFILL_FIELD_NUMBER: _ClassVar[int]
    ABORTED_IN_DECODE_FIELD_NUMBER: _ClassVar[int]
    DELAYED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HITS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    REATTACHES_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MANAGER_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SWAPS_FIELD_NUMBER: _ClassVar[int]
    SWAP_FAILURES_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    ready: bool
    state: str
    waiting_requests: int
    running_requests: int
    epoch: int
    num_blocks: int
    referenced_blocks: int
    peak_referenced_blocks: int
    cached_blocks: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    finished_requests: int
    aborted_requests: int
    aborted_waiting: int
    aborted_in_prefill: int
    aborted_in_decode: int
    delayed_requests: int
    prefix_hits: int
    preemptions: int
    reattaches: int
    step_seconds: float
    manager_wait_seconds: float
    swaps: int
    swap_failures: int
    forks: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., ready: bool = ..., state: _Optional[str] = ..., waiting_requests: _Optional[int] = ..., running_requests: _Optional[int] = ..., epoch: _Optional[int] = ..., num_blocks: _Optional[int] = ..., referenced_blocks: _Optional[int] = ..., peak_referenced_blocks: _Optional[int] = ..., cached_blocks: _Optional[int] = ..., steps: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., finished_requests: _Optional[int] = ..., aborted_requests: _Optional[int] = ..., aborted_waiting: _Optional[int] = ..., aborted_in_prefill: _Optional[int] = ..., aborted_in_decode: _Optional[int] = ..., delayed_requests: _Optional[int] = ..., prefix_hits: _Optional[int] = ..., preemptions: _Optional[int] = ..., reattaches: _Optional[int] = ..., step_seconds: _Optional[float] = ..., manager_wait_seconds: _Optional[float] = ..., swaps: _Optional[int] = ..., swap_failures: _Optional[int] = ..., forks: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("header", "live_requests")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    live_requests: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., live_requests: _Optional[int] = ...) -> None: ...
