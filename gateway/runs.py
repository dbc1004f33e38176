"""Validated requests on their way to a worker and back, the same for every surface: timed, logged, never unclosed."""

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Collection, Sequence

from gateway import generation, prompts, spans
from gateway.generation import Generation
from gateway.metrics import SurfaceMetrics
from gateway.migration import Journey, Migrations
from gateway.prompts import PROMPT
from gateway.routing import Router
from gateway.streams import Finish, Piece
from gateway.workers import Worker
from octavo.kv.v1 import common_pb2

logger = logging.getLogger(__name__)


async def route(
    task: Generation, router: Router, excluded: Collection[Worker] = (), generated: Sequence[int] = ()
) -> Worker:
    """The worker for a generation.

    Args:
        task: the generation.
        router: knows the workers.
        excluded: workers that failed it.
        generated: its tokens so far.

    Raises:
        ServiceError: no worker can serve it.
    """
    return await router.pick(
        task.model,
        [*task.prompt.token_ids, *generated] if generated else task.prompt.token_ids,
        request_id=task.request_id,
        root=common_pb2.PrefixRoot(salt=task.parameters.cache_salt),
        excluded=excluded,
    )


async def run(
    task: Generation, worker: Worker, migrations: Migrations, metrics: SurfaceMetrics
) -> AsyncGenerator[Piece, None]:
    """Run a generation on a worker, and on others when that is gone. Closing it closes the worker's call.

    Raises:
        ServiceError: what went wrong, in terms of the client's request.
    """
    finish: Finish | None = None
    tokens = 0
    journey = Journey(
        task.request_id,
        migrations,
        lambda excluded, generated: route(task, migrations.router, excluded, generated),
        task.patience,
        worker,
    )
    source = generation.pieces(task, journey)
    story = spans.story_of(task)
    try:
        async with contextlib.aclosing(source):
            with journey, metrics.request(task.model.name, task.parameters.n, task.arrived) as meter:
                async for piece in source:
                    tokens += len(piece.token_ids)
                    finish = piece.finish or finish
                    meter.see(piece)
                    if story is not None:
                        story.see(piece)
                    yield piece
    except BaseException as error:
        if story is not None:
            story.failed(error)
        raise
    finally:
        logger.info(
            "generation ended: %s",
            "not finished" if finish is None else finish.reason.name.lower(),
            extra={
                "request_id": task.request_id,
                "worker": journey.worker.address,
                "prompt_tokens": len(task.prompt.token_ids),
                "completion_tokens": tokens,
                "cached_tokens": 0 if finish is None else finish.usage.cached_tokens,
                "seconds": round(time.monotonic() - task.arrived, 4),
                "migrations": journey.migrations,
                "paused_seconds": round(journey.paused_seconds, 4),
            },
        )


async def prompt_text(task: Generation) -> str:
    """The prompt's text, for echo.

    Raises:
        InvalidRequest: it is too long for a message.
    """
    if task.prompt.text is not None:
        return task.prompt.text
    return await prompts.to_text(
        task.model, task.prompt.token_ids, PROMPT, skip_special_tokens=task.parameters.skip_special_tokens
    )
