"""What the worker is and how busy it is, in ``VllmEngine``'s words."""

import datetime
import importlib.metadata
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2

from model_worker.engine.engine import Engine
from octavo.worker.v1 import worker_pb2

# What gateways know this service by.
SERVER_TYPE = "vllm-grpc"
LEAST_SECONDS = 1.0


def model_info(model: worker_pb2.GetModelResponse, path: Path, files: Mapping[str, bytes]) -> Any:
    """``GetModelInfoResponse``.

    Args:
        path: where the worker has the model. A gateway that finds a tokenizer there, or by that name at the hub, takes
            it; others ask for it by ``GetTokenizer``.
        files: the tokenizer files by name; the checkpoint's configuration is one of them.
    """
    config = json.loads(files.get("config.json", b"{}"))
    info = vllm_pb2.GetModelInfoResponse(
        model_path=str(path.resolve() if path.exists() else path),
        served_model_name=model.model,
        is_generation=True,
        max_context_length=model.max_context,
        max_req_input_len=model.max_context - 1,
        vocab_size=model.vocab_size,
        model_type=str(config.get("model_type", "")),
        architectures=[model.architecture],
        eos_token_ids=model.eos_token_ids,
        bos_token_id=model.bos_token_id,
    )
    if isinstance(padding := config.get("pad_token_id"), int):
        info.pad_token_id = padding
    return info


def server_info(model: worker_pb2.GetModelResponse, active: int, uptime: float, last_request: float) -> Any:
    """``GetServerInfoResponse``.

    Args:
        active: requests under way.
        uptime: seconds since the start.
        last_request: seconds since the epoch, 0 for none yet.
    """
    return vllm_pb2.GetServerInfoResponse(
        active_requests=active,
        last_receive_timestamp=last_request,
        uptime_seconds=uptime,
        server_type=SERVER_TYPE,
        data_parallel_size=1,
        kv_cache_dtype=model.kv_dtype,
        model_dtype=f"torch.{model.dtype}",
        block_size=model.block_size,
        max_num_seqs=model.max_sequences,
        constrained_decoding_start="first_token",
    )


@dataclass(slots=True)
class Throughput:
    """Tokens generated per second, between two looks that are at least a second apart."""

    _looked: float = field(default_factory=time.monotonic)
    _tokens: int = 0
    _rate: float = 0.0

    def look(self, tokens: int) -> float:
        """The rate now that ``tokens`` were generated since the start."""
        now = time.monotonic()
        if (seconds := now - self._looked) >= LEAST_SECONDS:
            self._rate = (tokens - self._tokens) / seconds
            self._looked, self._tokens = now, tokens
        return self._rate


def loads(engine: Engine, tokens_per_second: float, unstarted_tokens: int) -> Any:
    """``GetLoadsResponse`` of the one rank that a worker is.

    Args:
        unstarted_tokens: prompt tokens of requests without a first token.
    """
    statistics, limits = engine.statistics, engine.limits
    running, waiting = engine.running_requests, engine.waiting_requests
    load = vllm_pb2.SchedulerLoad(
        num_running_reqs=running,
        num_waiting_reqs=waiting,
        num_total_reqs=running + waiting,
        num_used_tokens=statistics.referenced_blocks * limits.block_size,
        max_total_num_tokens=limits.num_blocks * limits.block_size,
        token_usage=statistics.referenced_blocks / limits.num_blocks,
        gen_throughput=tokens_per_second,
        cache_hit_rate=statistics.cached_tokens / max(statistics.prompt_tokens, 1),
        utilization=running / limits.max_sequences,
        max_running_requests=limits.max_sequences,
        num_waiting_uncached_tokens=unstarted_tokens,
    )
    return vllm_pb2.GetLoadsResponse(
        timestamp=datetime.datetime.now(datetime.UTC).isoformat(),
        version=importlib.metadata.version("octavo"),
        dp_rank_count=1,
        loads=[load],
    )
