"""Validated requests on their way to a worker and back, the same for every surface: timed, logged, never unclosed."""

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from dataclasses import replace

from gateway import generation, prompts, spans
from gateway.generation import Generation
from gateway.journey import Journey
from gateway.metrics import SurfaceMetrics
from gateway.migration import Migrations
from gateway.routing import Router
from gateway.streams import Finish, Piece
from gateway.tenancy.gate import Caller
from gateway.tenancy.places import Demand, Place
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
    parameters = task.parameters
    # A request for the prompt's log-probabilities finds no prefix, and its own is found by nobody.
    salt = parameters.cache_salt if parameters.prompt_logprobs is None else task.request_id
    return await router.pick(
        task.model,
        [*task.prompt.token_ids, *generated] if generated else task.prompt.token_ids,
        request_id=task.request_id,
        root=common_pb2.PrefixRoot(tenant=task.tenant.digest_root, salt=salt),
        excluded=excluded,
    )


def admit(caller: Caller, tasks: Sequence[Generation]) -> None:
    """Hold the generations of one call against its tenant's limits, all or none.

    Raises:
        InvalidRequest: the tenant may never send them.
        ServiceError: RESOURCE_EXHAUSTED, saying when.
    """
    for task in tasks:
        caller.check_lengths(task.prompt, task.max_tokens)
    caller.reserve(sum(task.cost for task in tasks))


@contextlib.asynccontextmanager
async def running(
    task: Generation, caller: Caller, migrations: Migrations, metrics: SurfaceMetrics
) -> AsyncIterator[AsyncGenerator[Piece, None]]:
    """Run a generation once it is its turn; leaving the block ends it, wherever it is.

    Raises:
        ServiceError: no turn came, no worker can serve it, or what went wrong, in terms of the client's request.
    """
    demand = Demand(task.cost, task.answers, task.parameters.priority, task.patience())
    async with caller.place(task.model.name, demand) as place:
        worker = await route(task, migrations.router)
        async with contextlib.aclosing(run(task, place, worker, migrations, metrics)) as pieces:
            yield pieces


def _after(waited: float, piece: Piece) -> Piece:
    """The last piece of a sample that waited here before a worker saw it."""
    if piece.finish is None:
        return piece
    usage = piece.finish.usage
    usage = replace(usage, queue_seconds=usage.queue_seconds + waited)
    return replace(piece, finish=replace(piece.finish, usage=usage))


async def run(
    task: Generation, place: Place, worker: Worker, migrations: Migrations, metrics: SurfaceMetrics
) -> AsyncGenerator[Piece, None]:
    """Run a generation on a worker, and on others when that is gone. Closing it closes the worker's call.

    What it has taken is noted at its place when it ends.

    Raises:
        ServiceError: what went wrong, in terms of the client's request.
    """
    finish: Finish | None = None
    begun = False
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
                    begun = True
                    if place.waited:
                        piece = _after(place.waited, piece)
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
        if begun:
            # Of answers that are generated and not kept, only that there were as many is known.
            place.generated_tokens = tokens * task.answers // task.parameters.n
            place.prompt_tokens = len(task.prompt.token_ids)
        logger.info(
            "generation ended: %s",
            "not finished" if finish is None else finish.reason.name.lower(),
            extra={
                "request_id": task.request_id,
                "tenant": task.tenant.name,
                "worker": journey.worker.address,
                "prompt_tokens": len(task.prompt.token_ids),
                "completion_tokens": tokens,
                "cached_tokens": 0 if finish is None else finish.usage.cached_tokens,
                "waited_seconds": round(place.waited, 4),
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
        task.model, task.prompt.token_ids, task.prompt.name, skip_special_tokens=task.parameters.skip_special_tokens
    )
