"""What the HTTP surface answers besides generations: models, health, metrics."""

import time
from importlib.metadata import version
from typing import Any

import grpc
from prometheus_client.exposition import choose_encoder
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from gateway.http import openapi
from gateway.http.surface import Surface
from gateway.models import ServedModel
from service.errors import ServiceError

JSON = "application/json"


class Pages:
    """GET only."""

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self._description = to_json(openapi.description(version("octavo")))

    async def models(self, request: Request) -> Response:
        """``/v1/models``."""
        with self._surface.metrics.call("/v1/models"):
            known = [self._shown(model, workers) for model, workers in self._surface.router.models()]
            return _json({"object": "list", "data": known})

    async def model(self, request: Request) -> Response:
        """``/v1/models/{id}``."""
        with self._surface.metrics.call("/v1/models/{id}"):
            wanted = request.path_params["id"]
            for model, workers in self._surface.router.models():
                if model.name == wanted:
                    return _json(self._shown(model, workers))
            names = ", ".join(model.name for model, _ in self._surface.router.models())
            message = f"no model is served under that name; served: {names}"
            raise ServiceError(grpc.StatusCode.NOT_FOUND, message, reason="UNKNOWN_MODEL")

    async def health(self, request: Request) -> Response:
        """``/health``: 200 while some worker can be used, as ``grpc.health.v1`` says SERVING."""
        ready = self._surface.router.ready and not self._surface.draining
        return _json({"status": "SERVING" if ready else "NOT_SERVING"}, status=200 if ready else 503)

    async def live(self, request: Request) -> Response:
        """``/livez``: 200 while the process answers at all; a restart would not bring a lost worker back."""
        return _json({"status": "LIVE", "time": int(time.time())})

    async def describe(self, request: Request) -> Response:
        """``/openapi.json``."""
        return Response(self._description, media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        """``/metrics``, in the format that the scraper asks for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._surface.metrics.registry), headers={"content-type": content_type})

    def _shown(self, model: ServedModel, workers: int) -> dict[str, Any]:
        return {
            "id": model.name,
            "object": "model",
            "created": self._surface.started,
            "owned_by": "octavo",
            # Beyond OpenAI's API; the first is where other servers and their tools have it.
            "max_model_len": model.max_context,
            "ready_workers": workers,
        }


def _json(document: Any, status: int = 200) -> Response:
    return Response(to_json(document), status, media_type=JSON)
