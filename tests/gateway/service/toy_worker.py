"""A worker without a model: it speaks octavo.worker.v1 over real gRPC and answers a prompt with the prompt, repeated.

So a prompt is a script of the answer: "abc" gives a b c a b c ..., a prompt with the end token in it stops there, and
emoji come byte by byte. Prompts that begin with FULL, BREAK or DIE fail in the named way after their first token.
What it is told to go on with must be how that answer begins.

It prints what happens to it, one JSON object per line: {"event": "request", ...}, {"event": "ended", ...}. SIGUSR1
turns its readiness off and on.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
from byte_tokenizer import END_ID, VOCAB_SIZE, tokenizer_files
from google.protobuf.json_format import MessageToDict

from octavo.worker.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from service.channels import TlsFiles
from service.errors import ServiceError
from service.process import announce_ready
from service.serving import Server, catch_signals, drain_at_signal

# Of a request that names none.
SEED = 4711
SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name


def tell(event: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


class ToyWorker(worker_pb2_grpc.WorkerServiceServicer):
    def __init__(self, model: str, max_context: int, token_seconds: float, broken: str) -> None:
        self._model = model
        self._broken = broken
        self.broken_fields: list[str] = []
        self._max_context = max_context
        self._token_seconds = token_seconds
        self.fingerprint = "bytes"
        self.halt_after = self.leave_after = -1

    async def GetModel(self, request: worker_pb2.GetModelRequest, context: Any) -> worker_pb2.GetModelResponse:
        return worker_pb2.GetModelResponse(
            model=self._model,
            model_fingerprint=self.fingerprint,
            vocab_size=VOCAB_SIZE,
            max_context=self._max_context,
            eos_token_ids=[END_ID],
        )

    async def GetStats(self, request: worker_pb2.GetStatsRequest, context: Any) -> worker_pb2.GetStatsResponse:
        return worker_pb2.GetStatsResponse(state="waiting for SIGUSR1")

    async def GetTokenizer(
        self, request: worker_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[worker_pb2.GetTokenizerResponse]:
        for name, content in tokenizer_files().items():
            half = len(content) // 2
            for data in (content[:half], content[half:]):
                yield worker_pb2.GetTokenizerResponse(name=name, size=len(content), data=data)

    async def Generate(
        self, request: worker_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[worker_pb2.GenerateResponse]:
        tell(
            "request",
            request_id=request.request_id,
            prompt_tokens=len(request.token_ids),
            timeout=context.time_remaining(),
            temperature=request.sampling.temperature,
            max_tokens=request.stop.max_tokens,
            tenant=request.tenant,
            priority=request.priority,
            seed=request.sampling.seed,
            resumed={sample.index: len(sample.token_ids) for sample in request.resume.samples},
            resumed_seed=request.resume.seed,
            prompt_logprobs=request.HasField("prompt_logprobs"),
            sampling=MessageToDict(request.sampling, preserving_proto_field_name=True),
        )
        if self._broken:
            fields = dict.fromkeys(self.broken_fields, "broken, as asked for")
            raise ServiceError(grpc.StatusCode[self._broken], "broken, as asked for", reason="BROKEN", fields=fields)
        sent = 0
        how = "cancelled"
        try:
            await self._misbehave(sent)
            async for response in self._answer(request):
                yield response
                sent += 1
                await self._misbehave(sent)
            how = "finished"
        except ServiceError as error:
            how = error.code.name
            raise
        finally:
            tell("ended", request_id=request.request_id, how=how, sent=sent)

    async def _misbehave(self, sent: int) -> None:
        """What the flags ask for after so many tokens of a call."""
        if sent == self.halt_after:
            tell("halted")
            await asyncio.Event().wait()
        if sent == self.leave_after:
            raise ServiceError(grpc.StatusCode.UNAVAILABLE, "the worker stopped", reason="SHUTTING_DOWN")

    async def _answer(self, request: worker_pb2.GenerateRequest) -> AsyncIterator[worker_pb2.GenerateResponse]:
        """Sample i of n answers with the prompt from its token i on; the samples take turns."""
        prompt = list(request.token_ids)
        fault = _fault(prompt)
        places = itertools.product(range(request.stop.max_tokens), range(max(1, request.n)))
        unfinished = set(range(max(1, request.n)))
        begun = {sample.index: list(sample.token_ids) for sample in request.resume.samples}
        for index, told in begun.items():
            if told != [prompt[(position + index) % len(prompt)] for position in range(len(told))]:
                raise ServiceError(grpc.StatusCode.INVALID_ARGUMENT, "not how it begins", reason="WRONG_RESUME")
        started: worker_pb2.Started | None = _started(request)
        for position, index in places:
            if index not in unfinished or position < len(begun.get(index, ())):
                continue
            token = prompt[(position + index) % len(prompt)]
            response = worker_pb2.GenerateResponse(index=index, token_ids=[token])
            if request.HasField("logprobs"):
                response.logprobs.append(_logprobs(token, request.logprobs))
            if started is not None:
                response.started.CopyFrom(started)
                started = None
            stopped = token in request.stop.stop_token_ids or (token == END_ID and not request.stop.ignore_eos)
            if stopped or position + 1 == request.stop.max_tokens:
                response.finished.reason = (
                    sampling_pb2.FINISH_REASON_STOP if stopped else sampling_pb2.FINISH_REASON_LENGTH
                )
                if stopped:
                    response.finished.stop_token_id = token
                response.finished.stats.cached_tokens = len(prompt) // 2
                response.finished.stats.prefill_chunks = 1
                response.finished.stats.queue_seconds = 0.25
                unfinished.discard(index)
            yield response
            if not unfinished or fault == "BREAK":
                return
            if fault == "FULL":
                raise ServiceError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", reason="QUEUE_FULL", retry_seconds=2.5
                )
            if fault == "DIE":
                os._exit(1)
            await asyncio.sleep(self._token_seconds)


def _started(request: worker_pb2.GenerateRequest) -> worker_pb2.Started:
    prompt = list(request.token_ids)
    started = worker_pb2.Started(
        seed=request.resume.seed or request.sampling.seed or SEED,
        prompt_tokens=len(prompt),
        cached_tokens=len(prompt) // 2,
    )
    if request.HasField("prompt_logprobs"):
        started.prompt_logprobs.extend(_logprobs(one, request.prompt_logprobs) for one in prompt[1:])
    return started


def _logprobs(token: int, top: int) -> sampling_pb2.TokenLogprobs:
    """Every token has log-probability -1; the most likely ones are those of the smallest ids, at -0.5."""
    likely = [sampling_pb2.TokenLogprob(token_id=id_, logprob=-0.5) for id_ in range(top)]
    return sampling_pb2.TokenLogprobs(token_id=token, logprob=-1.0, top=likely)


def _fault(prompt: list[int]) -> str:
    """The word that a prompt begins with, where it names a fault. Letters are their ASCII code less 33."""
    text = "".join(chr(token + 33) for token in prompt[:5] if token < 94)
    return next((word for word in ("FULL", "BREAK", "DIE") if text.startswith(word)), "")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--model", default="bytes")
    parser.add_argument("--max-context", type=int, default=6_000_000)
    parser.add_argument("--token-seconds", type=float, default=0.0)
    parser.add_argument("--broken", default="", metavar="CODE", help="healthy, but every generation fails at once")
    parser.add_argument("--broken-fields", default="", metavar="A,B", help="fields of the request that it names then")
    parser.add_argument("--fingerprint", default="bytes")
    parser.add_argument("--halt-after", type=int, default=-1, metavar="N", help="say no more after N tokens of a call")
    parser.add_argument("--leave-after", type=int, default=-1, metavar="N", help="end a call so, as a drain does")
    parser.add_argument("--tls", type=Path, nargs=3, metavar=("CA", "CERTIFICATE", "KEY"), help="mutual TLS")
    options = parser.parse_args()
    caught = catch_signals()
    worker = ToyWorker(options.model, options.max_context, options.token_seconds, options.broken)
    worker.fingerprint = options.fingerprint
    worker.broken_fields = options.broken_fields.split(",") if options.broken_fields else []
    worker.halt_after, worker.leave_after = options.halt_after, options.leave_after
    server = Server(
        [SERVICE],
        lambda target: worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, target),
        TlsFiles(*options.tls) if options.tls else None,
    )
    address = await server.start(options.listen)
    await server.set_ready(True)
    loop = asyncio.get_running_loop()
    toggles: set[asyncio.Task[None]] = set()
    loop.add_signal_handler(signal.SIGUSR1, lambda: toggles.add(loop.create_task(server.set_ready(not server.ready))))
    announce_ready("model_worker", address)
    await drain_at_signal(server, caught, 0)


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
