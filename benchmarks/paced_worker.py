"""A worker without a model, over real gRPC: it emits one token per stream and tick, and notes when.

    python benchmarks/paced_worker.py --tokenizer DIR --stamps FILE --rows N --columns N

A prompt of two ids is the order: [row of the stamps, ticks in units of 10 us]. Token k of a stream goes out at a
multiple of its tick, as the tokens of one step of an engine do together, and `stamps[row, k]` is the monotonic time of
that. A tick of 0 is a stream that stays silent; a stream of one token gets it at once.
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from gateway.text.tokenizer import TOKENIZER_FILES, Tokenizer
from octavo.worker.v1 import sampling_pb2, worker_pb2, worker_pb2_grpc
from service.process import announce_ready, follow_parent
from service.serving import Server, catch_signals, drain_at_signal

SERVICE = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
TICK_SECONDS = 1e-5
PIECE_BYTES = 1 << 20


class PacedWorker(worker_pb2_grpc.WorkerServiceServicer):
    """``octavo.worker.v1.WorkerService`` as far as a gateway asks for it."""

    def __init__(self, folder: Path, word: str, stamps: np.ndarray) -> None:
        tokenizer = Tokenizer.from_folder(folder)
        (self._token,) = tokenizer.encode(word, add_special_tokens=False)
        self._vocab_size = tokenizer.vocab_size
        self._files = {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).exists()}
        self._stamps = stamps

    async def GetModel(self, request: worker_pb2.GetModelRequest, context: Any) -> worker_pb2.GetModelResponse:
        return worker_pb2.GetModelResponse(
            model="paced", model_fingerprint="paced", vocab_size=self._vocab_size, max_context=1 << 20
        )

    async def GetTokenizer(
        self, request: worker_pb2.GetTokenizerRequest, context: Any
    ) -> AsyncIterator[worker_pb2.GetTokenizerResponse]:
        for name, content in self._files.items():
            for start in range(0, len(content), PIECE_BYTES):
                data = content[start : start + PIECE_BYTES]
                yield worker_pb2.GetTokenizerResponse(name=name, size=len(content), data=data)

    async def Generate(
        self, request: worker_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[worker_pb2.GenerateResponse]:
        row, ticks = request.token_ids
        tokens = request.stop.max_tokens
        if ticks == 0:
            await asyncio.Event().wait()
        loop = asyncio.get_running_loop()
        interval = ticks * TICK_SECONDS
        header = worker_pb2.ResponseHeader(request_id=request.request_id)
        due = (loop.time() // interval + 1) * interval
        for number in range(tokens):
            if tokens > 1:
                await asyncio.sleep(due - loop.time())
                due += interval
            response = worker_pb2.GenerateResponse(header=header, token_ids=(self._token,))
            if number == 0:
                response.started.prompt_tokens = len(request.token_ids)
            if number == tokens - 1:
                response.finished.reason = sampling_pb2.FINISH_REASON_LENGTH
            self._stamps[row, number] = loop.time()
            yield response


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--word", default=" the", help="text of the one token that it emits")
    parser.add_argument("--stamps", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--columns", type=int, required=True)
    options = parser.parse_args()
    follow_parent()
    caught = catch_signals()
    stamps = np.memmap(options.stamps, np.float64, "r+", shape=(options.rows, options.columns))
    worker = PacedWorker(options.tokenizer, options.word, stamps)
    server = Server([SERVICE], lambda target: worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, target))
    address = await server.start("127.0.0.1:0")
    await server.set_ready(True)
    announce_ready("model_worker", address)
    await drain_at_signal(server, caught, 0)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
