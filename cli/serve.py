"""``octavo serve``: the three services on this machine, as separate processes."""

from pathlib import Path
from typing import Annotated

import typer

from cli import stack
from cli.failures import CliError
from service.settings import MAX_PORT

DEFAULT_MODEL = Path("models/smollm2")


def serve(
    model: Annotated[Path, typer.Option(help="model folder or GGUF file")] = DEFAULT_MODEL,
    served_name: Annotated[str | None, typer.Option(help="name that clients use [default: the folder's]")] = None,
    host: Annotated[str, typer.Option(help="address that all services listen on")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="gateway's port [default: 50050]", min=0, max=MAX_PORT)] = None,
    http_port: Annotated[
        int | None, typer.Option(help="gateway's HTTP port [default: 8000]", min=0, max=MAX_PORT)
    ] = None,
    http: Annotated[bool, typer.Option(help="serve OpenAI's HTTP API too")] = True,
    worker_port: Annotated[int | None, typer.Option(help="[default: 50051]", min=0, max=MAX_PORT)] = None,
    manager_port: Annotated[int | None, typer.Option(help="[default: 50052]", min=0, max=MAX_PORT)] = None,
    worker_metrics_port: Annotated[int | None, typer.Option(help="[default: 9101]", min=0, max=MAX_PORT)] = None,
    manager_metrics_port: Annotated[int | None, typer.Option(help="[default: 9102]", min=0, max=MAX_PORT)] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16")] = None,
    weights: Annotated[str | None, typer.Option(help="auto, int8 or int4: how matrices are stored")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda")] = None,
    block_size: Annotated[int | None, typer.Option(help="tokens in a block [default: 16]")] = None,
    num_blocks: Annotated[int | None, typer.Option(help="blocks in the pool")] = None,
    kv_memory_gib: Annotated[float | None, typer.Option(help="memory for the pool, instead of --num-blocks")] = None,
    max_batch_tokens: Annotated[int | None, typer.Option(help="token budget of a step")] = None,
    max_sequences: Annotated[int | None, typer.Option(help="most sequences in a step")] = None,
    max_context: Annotated[int | None, typer.Option(help="most tokens of prompt and output together")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the worker")] = None,
    default_max_tokens: Annotated[int | None, typer.Option(help="for requests that do not say")] = None,
    lease_seconds: Annotated[float | None, typer.Option(help="how long a pool outlives a broken stream")] = None,
    grace_seconds: Annotated[float, typer.Option(help="what running requests get when all is drained")] = 10.0,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error")] = None,
    config: Annotated[Path | None, typer.Option(help="octavo.toml with tables [kv_manager] [worker] [gateway]")] = None,
    in_process: Annotated[bool, typer.Option("--in-process", help="put the KV manager inside the worker")] = False,
) -> None:
    """Serve a model: gateway, model worker and KV manager on this machine.

    Options not given follow each service's own settings: OCTAVO_GATEWAY_*, OCTAVO_WORKER_*, OCTAVO_KV_*, octavo.toml.
    """
    from cli.run_stack import run_stack

    if not 0 <= grace_seconds <= 86_400:  # typer's own range lets NaN through
        raise typer.BadParameter(f"{grace_seconds:g} is not in the range 0 to 86400", param_hint="'--grace-seconds'")
    stack.check_installed()
    if not model.exists():
        hint = " (fetch it: octavo models fetch smollm2)" if model == DEFAULT_MODEL else ""
        raise CliError(f"no model at {model}{hint}")
    options = stack.StackOptions(
        host=host,
        ports={
            stack.GATEWAY: port,
            stack.GATEWAY_HTTP: http_port,
            stack.WORKER: worker_port,
            stack.MANAGER: manager_port,
            stack.WORKER_METRICS: worker_metrics_port,
            stack.MANAGER_METRICS: manager_metrics_port,
        },
        common={"grace_seconds": grace_seconds, "log_level": log_level, "config": config},
        config=config,
        manager={"lease_seconds": lease_seconds},
        worker={
            "model": model,
            "served_name": served_name,
            "dtype": dtype,
            "weights": weights,
            "device": device,
            "block_size": block_size,
            "num_blocks": num_blocks,
            "kv_memory_gib": kv_memory_gib,
            "max_batch_tokens": max_batch_tokens,
            "max_sequences": max_sequences,
            "max_context": max_context,
            "threads": threads,
        },
        gateway={"default_max_tokens": default_max_tokens},
    )
    endpoints = [endpoint for endpoint in stack.ENDPOINTS if http or endpoint is not stack.GATEWAY_HTTP]
    run_stack(options, endpoints, grace_seconds, in_process=in_process)
