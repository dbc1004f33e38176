"""The worker's settings: flag > environment > ``octavo.toml`` ``[worker]`` > default."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from service import model_settings
from service.channels import TlsFiles
from service.model_settings import (
    Address,
    Addresses,
    NaturalInt,
    OptionalAddress,
    OptionalPath,
    OptionalValue,
    PositiveFloat,
    PositiveInt,
    Token,
)

HOSTNAME = "{hostname}"


def _on_this_host(pool: str) -> str:
    """Replicas that share a command line are told apart by their hosts' names: a container's is its own."""
    return pool.replace(HOSTNAME, socket.gethostname())


class WorkerSettings(model_settings.ServiceSettings, env_prefix="OCTAVO_WORKER_"):
    """Run one model on a pool of KV blocks managed by a KV manager."""

    model: Annotated[Path, Field(description="model folder (safetensors) or GGUF file")]
    served_name: Annotated[str, Field(description="name clients use; empty: the folder's name")] = ""
    listen: Annotated[Address, Field(description="address to serve gRPC on, host:port")] = "127.0.0.1:50051"
    metrics: Annotated[OptionalAddress, Field(description="address of the Prometheus page; empty: none")] = (
        "127.0.0.1:9101"
    )
    manager: Annotated[Address, Field(description="the KV manager's address, host:port")] = "127.0.0.1:50052"
    pool: Annotated[
        str,
        AfterValidator(_on_this_host),
        Field(min_length=1, max_length=256, description="the pool's name at the manager; {hostname} is this host's"),
    ] = "default"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Field(description="type of weights and KV; auto: float32 on CPU, bfloat16 on CUDA"),
    ] = "auto"
    weights: Annotated[
        Literal["auto", "int8", "int4"],
        Field(description="how matrices are stored; auto: in dtype; int8, int4: rounded when loaded, on CPU only"),
    ] = "auto"
    device: Annotated[str, Field(description="auto, cpu, cuda or cuda:N")] = "auto"
    block_size: Annotated[int, Field(ge=1, le=256, description="tokens per KV block")] = 16
    num_blocks: Annotated[
        NaturalInt | None, OptionalValue, Field(description="blocks in the pool; absent: as many as the memory holds")
    ] = None
    kv_memory_gib: Annotated[
        PositiveFloat | None,
        OptionalValue,
        Field(
            description="memory for KV blocks; absent: 1 on CPU, on CUDA what the model leaves of 92 % of what is free"
        ),
    ] = None
    host_blocks: Annotated[
        NaturalInt | None,
        OptionalValue,
        Field(description="blocks of the host tier, where preempted sequences wait; absent: by --host-memory-mib"),
    ] = None
    host_memory_mib: Annotated[int, Field(ge=0, description="memory for the host tier; 0: none")] = 256
    ageing_seconds: Annotated[
        float, Field(gt=0, description="waiting so long counts as much as one step of priority")
    ] = 10.0
    watermark: Annotated[int, Field(ge=0, description="blocks kept free by admissions while others run")] = 0
    tenants: Annotated[
        OptionalPath, Field(description="the gateway's tenants file, for its KV quotas (docs/tenants.md); unset: none")
    ] = None
    max_context: Annotated[
        PositiveInt | None, OptionalValue, Field(description="most tokens per request; absent: the model's")
    ] = None
    max_batch_tokens: Annotated[int, Field(ge=1, description="token budget of a step")] = 512
    prefill_chunk: Annotated[
        PositiveInt | None,
        OptionalValue,
        Field(description="most prompt tokens of one request in a step; absent: the token budget"),
    ] = None
    max_sequences: Annotated[int, Field(ge=1, description="most sequences with KV blocks")] = 32
    cuda_graphs: Annotated[bool, Field(description="on CUDA, decode by graphs captured per batch size")] = True
    max_queued: Annotated[int, Field(ge=1, description="most requests in the queue")] = 1024
    threads: Annotated[
        PositiveInt | None,
        OptionalValue,
        Field(description="CPU threads of the model; absent: one per core it may use"),
    ] = None
    lease_patience: Annotated[
        float, Field(gt=0, description="seconds a broken stream to the manager is tried again")
    ] = 2.0
    grace_seconds: Annotated[float, Field(ge=0, le=86_400, description="seconds requests get at SIGTERM")] = 30.0
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Field(description="least severe log")] = "info"
    gateways: Annotated[
        Addresses,
        Field(description="gateways to announce itself to, host:port,host:port; dns:///host:port for all of a name"),
    ] = ()
    gateway_token: Annotated[
        Token, Field(description="the gateways' registration_token, best given by the environment")
    ] = ""
    advertise: Annotated[
        OptionalAddress, Field(description="where gateways reach this worker, host:port; empty: where it listens")
    ] = ""
    gateway_ca: Annotated[OptionalPath, Field(description="reach the gateways by TLS, verified by this CA")] = None
    gateway_certificate: Annotated[OptionalPath, Field(description="client certificate for the gateways")] = None
    gateway_key: Annotated[OptionalPath, Field(description="client key for the gateways")] = None
    manager_ca: Annotated[OptionalPath, Field(description="reach the manager by TLS, verified by this CA")] = None
    manager_certificate: Annotated[OptionalPath, Field(description="client certificate for the manager")] = None
    manager_key: Annotated[OptionalPath, Field(description="client key for the manager")] = None

    either = (("num_blocks", "kv_memory_gib"),)

    @model_validator(mode="after")
    def _peer_files(self) -> Self:
        self._check_peer("manager")
        self._check_peer("gateway")
        return self

    @model_validator(mode="after")
    def _announcements_take_a_token(self) -> Self:
        if self.gateways and not self.gateway_token:
            raise ValueError("gateways needs gateway_token: they take no announcement without it")
        return self

    @property
    def manager_tls(self) -> TlsFiles | None:
        """TLS towards the manager, None for plain text."""
        return self._peer_tls("manager")

    @property
    def gateway_tls(self) -> TlsFiles | None:
        """TLS towards the gateways, None for plain text."""
        return self._peer_tls("gateway")


def load(arguments: Sequence[str] | None = None) -> WorkerSettings:
    """Read all sources; print what is wrong and exit with status 2 when something is."""
    return model_settings.load(WorkerSettings, program="model_worker", table="worker", arguments=arguments)
