"""The gateway's settings: flag > environment > ``octavo.toml`` table ``[gateway]`` > default.

A field ``max_prompt_bytes`` is the flag ``--max-prompt-bytes``, the variable ``OCTAVO_GATEWAY_MAX_PROMPT_BYTES`` and
the key ``max_prompt_bytes`` of the table.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from gateway.prefix_lookup import ANSWER_SECONDS
from gateway.reasoning import marks
from gateway.routing_cost import PREFIX_WEIGHT
from gateway.tools import families
from service import model_settings
from service.channels import TlsFiles
from service.model_settings import (
    Address,
    Addresses,
    OptionalAddress,
    OptionalPath,
    OptionalValue,
    PositiveInt,
    Token,
    split_list,
)


class GatewaySettings(model_settings.ServiceSettings, env_prefix="OCTAVO_GATEWAY_"):
    """Serve text over gRPC from one or more model workers."""

    listen: Annotated[Address, Field(description="address to serve gRPC on, host:port; port 0 picks one")] = (
        "127.0.0.1:50050"
    )
    workers: Annotated[
        Addresses,
        Field(description="model workers, host:port,host:port; dns:///host:port for all addresses of a name"),
    ] = ("127.0.0.1:50051",)
    tokenizer: Annotated[OptionalPath, Field(description="folder with tokenizer.json; unset: asked of the workers")] = (
        None
    )
    tool_parser: Annotated[
        families.ParserName,
        Field(description="syntax of the models' tool calls; auto: by the words of their chat templates"),
    ] = "auto"
    reasoning_parser: Annotated[
        marks.ParserName,
        Field(description="marks around the models' reasoning; auto: by the words of their chat templates"),
    ] = "auto"
    default_max_tokens: Annotated[
        int, Field(ge=1, description="tokens generated when a request does not say, cut at the context's end")
    ] = 512
    max_prompt_bytes: Annotated[
        int, Field(ge=1, le=32 << 20, description="largest prompt or conversation, in bytes of UTF-8")
    ] = 4 << 20
    http_listen: Annotated[
        OptionalAddress, Field(description="address to serve OpenAI's HTTP API on, host:port; empty: none")
    ] = "127.0.0.1:8000"
    http_max_body_bytes: Annotated[int, Field(ge=1, le=256 << 20, description="largest body of an HTTP request")] = (
        8 << 20
    )
    http_keep_alive_seconds: Annotated[
        float, Field(gt=0, description="silence after which an event stream sends a comment")
    ] = 10.0
    http_cors_origins: Annotated[
        tuple[str, ...],
        NoDecode,
        BeforeValidator(split_list),
        Field(description="origins whose pages may call the HTTP API, https://host,https://host or *; empty: none"),
    ] = ()
    http_reasoning_field: Annotated[
        Literal["reasoning_content", "reasoning", "both"],
        Field(description="name of the field that has a message's reasoning: SGLang's, vLLM's, or both"),
    ] = "reasoning_content"
    tenants: Annotated[
        OptionalPath, Field(description="file of tenants and their keys (docs/tenants.md); unset: calls need no key")
    ] = None
    http_open_metrics: Annotated[bool, Field(description="serve /metrics over HTTP without an operator's key")] = False
    max_running: Annotated[
        PositiveInt | None,
        OptionalValue,
        Field(description="samples of a model at its workers at once; unset: by their max_sequences"),
    ] = None
    max_queued: Annotated[
        int, Field(ge=0, description="requests of one tenant that wait for a place at a model's workers")
    ] = 1024
    ageing_seconds: Annotated[
        float, Field(gt=0, description="a tenant that has waited so long goes next, and its oldest request first")
    ] = 30.0
    grace_seconds: Annotated[float, Field(ge=0, le=86_400, description="seconds running streams get at SIGTERM")] = 30.0
    metrics: Annotated[OptionalAddress, Field(description="address of the Prometheus page; empty: none")] = ""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Field(description="least severe log")] = "info"
    dns_seconds: Annotated[float, Field(gt=0, description="seconds between two looks at a worker's name")] = 5.0
    registration_token: Annotated[
        Token,
        Field(description="what workers that announce themselves have to know; empty: no announcements"),
    ] = ""
    registration_lease_seconds: Annotated[
        float, Field(ge=0.5, le=3600, description="seconds after which an announced worker is forgotten")
    ] = 10.0
    managers: Annotated[
        Addresses,
        Field(description="KV managers of the workers' pools, host:port,host:port; empty: prefixes are not looked up"),
    ] = ()
    inspect: Annotated[bool, Field(description="serve the inspector over HTTP, /inspect and what it shows")] = True
    inspect_managers: Annotated[
        Addresses,
        Field(description="KV managers that /inspect shows, host:port,host:port; empty: those of managers"),
    ] = ()
    inspect_tokens: Annotated[
        bool,
        Field(description="show at /inspect what stands in blocks, users' text, where the manager tells token ids"),
    ] = False
    routing: Annotated[
        Literal["auto", "prefix", "least-load", "round-robin"],
        Field(description="how a worker is chosen; auto: prefix where managers are given, else least-load"),
    ] = "auto"
    routing_prefix_weight: Annotated[
        float, Field(gt=0, le=1000, description="what an uncached prompt token costs, in tokens of load")
    ] = PREFIX_WEIGHT
    routing_lookup_seconds: Annotated[
        float, Field(gt=0, le=10, description="longest wait for the KV managers before routing by load")
    ] = ANSWER_SECONDS
    migration_wait_seconds: Annotated[
        float, Field(ge=0, le=3600, description="longest pause of a request whose worker is gone, until another comes")
    ] = 20.0
    max_migrations: Annotated[
        int, Field(ge=0, description="workers that a request may leave for another, for whatever reason; 0: none")
    ] = 8
    max_worker_losses: Annotated[
        int, Field(ge=0, description="of them, those lost under the request, which may be what kills them")
    ] = 2
    worker_ca: Annotated[OptionalPath, Field(description="reach the workers by TLS, verified by this CA")] = None
    worker_certificate: Annotated[OptionalPath, Field(description="client certificate for the workers")] = None
    worker_key: Annotated[OptionalPath, Field(description="client key for the workers")] = None
    manager_ca: Annotated[OptionalPath, Field(description="reach the KV managers by TLS, verified by this CA")] = None
    manager_certificate: Annotated[OptionalPath, Field(description="client certificate for the KV managers")] = None
    manager_key: Annotated[OptionalPath, Field(description="client key for the KV managers")] = None

    @model_validator(mode="after")
    def _peer_files(self) -> Self:
        self._check_peer("worker")
        self._check_peer("manager")
        return self

    @model_validator(mode="after")
    def _workers_come_from_somewhere(self) -> Self:
        if not self.workers and not self.registration_token:
            raise ValueError("workers is empty, and without registration_token none can announce itself")
        return self

    @model_validator(mode="after")
    def _prefix_needs_managers(self) -> Self:
        if self.routing == "prefix" and not self.managers:
            raise ValueError("routing prefix needs managers: they know what is cached")
        return self

    @property
    def reasoning_fields(self) -> tuple[str, ...]:
        """The names that ``http_reasoning_field`` stands for."""
        one = self.http_reasoning_field
        return ("reasoning_content", "reasoning") if one == "both" else (one,)

    @property
    def worker_tls(self) -> TlsFiles | None:
        """TLS towards the workers, None for plain text."""
        return self._peer_tls("worker")

    @property
    def manager_tls(self) -> TlsFiles | None:
        """TLS towards the KV managers, None for plain text."""
        return self._peer_tls("manager")


def load(arguments: Sequence[str] | None = None) -> GatewaySettings:
    """Read all sources; print usage and what is wrong, and exit with status 2, when something is."""
    return model_settings.load(GatewaySettings, program="gateway", table="gateway", arguments=arguments)
