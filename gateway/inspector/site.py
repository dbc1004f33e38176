"""The routes of the inspector. The page itself holds nothing and is open to all; what it shows needs an operator's key.

/inspect                  the page; with status 401 or 403, asking for a key, where the caller has none that will do
/inspect/main.js, ...     what the page is made of
/inspect/pools            JSON: the pools that can be looked at
/inspect/watch?manager=&pool=
                          a record file without end: the pool as it changes
/inspect/tokens?manager=&pool=&digest=
                          JSON: the tokens of a block, where both operators allowed it
"""

import mimetypes
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from importlib import resources

import grpc
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gateway.inspector.feed import Feed, Place
from gateway.inspector.hub import Hub
from gateway.inspector.token_ids import TokenIds
from gateway.inspector.viewers import Viewer
from service.errors import ServiceError, invalid_argument

PAGE = "/inspect"
DATA = frozenset({f"{PAGE}/pools", f"{PAGE}/watch", f"{PAGE}/tokens"})
"""What only operators may read."""

_HEADERS = {
    # Nothing from elsewhere, nothing inline; and no other page may frame this one.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
_STREAM_HEADERS = {
    "cache-control": "no-store",
    # Asks proxies to pass frames on one by one.
    "x-accel-buffering": "no",
    "x-content-type-options": "nosniff",
}

RECORD = "application/vnd.octavo.record"

Decode = Callable[[str, list[int]], str | None]
"""The text of tokens of a pool; None where nobody here can tell."""


def _assets() -> Mapping[str, tuple[bytes, str]]:
    """Body and type by path."""
    found = {}
    for file in resources.files(__package__).joinpath("page").iterdir():
        path = PAGE if file.name == "index.html" else f"{PAGE}/{file.name}"
        kind = "text/javascript" if file.name.endswith(".js") else mimetypes.guess_type(file.name)[0]
        found[path] = file.read_bytes(), kind or "application/octet-stream"
    return found


ASSETS = _assets()
OPEN = frozenset(ASSETS)
"""What needs no key."""


class Site:
    """The page and its data.

    Args:
        hub: the managers.
        status: what the page is answered with: 200, or why its caller will be refused the data.
        decode: text of token ids; None where token ids are not to be told at all.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        status: Callable[[Request], int] = lambda _: 200,
        decode: Decode | None = None,
    ) -> None:
        self._hub = hub
        self._status = status
        self._decode = decode
        self._tokens: dict[Place, TokenIds] = {}
        self._viewers: Counter[Place] = Counter()

    def routes(self) -> list[Route]:
        """What is served where."""
        return [
            *(Route(path, self.asset) for path in ASSETS),
            Route(f"{PAGE}/pools", self.pools),
            Route(f"{PAGE}/watch", self.watch),
            Route(f"{PAGE}/tokens", self.tokens),
        ]

    async def close(self) -> None:
        """End every stream; no other begins."""
        for tokens in self._tokens.values():
            tokens.end()
        await self._hub.close()

    async def asset(self, request: Request) -> Response:
        """A part of the page."""
        path = request.url.path
        body, kind = ASSETS[path]
        status = self._status(request) if path == PAGE else 200
        return Response(body, status, _HEADERS, kind)

    async def pools(self, request: Request) -> Response:
        """The pools that can be looked at."""
        document = {"pools": await self._hub.pools(), "tokens": self._decode is not None}
        return Response(to_json(document), headers={"cache-control": "no-store"}, media_type="application/json")

    async def watch(self, request: Request) -> Response:
        """A pool as it changes, until the caller leaves."""
        feed = await self._hub.feed(_place_of(request))
        return StreamingResponse(self._frames(feed), headers=_STREAM_HEADERS, media_type=RECORD)

    async def tokens(self, request: Request) -> Response:
        """The tokens that stand in the block of a digest."""
        if self._decode is None:
            message = "this gateway tells nobody what stands in blocks: its operator can allow it, --inspect-tokens"
            raise ServiceError(grpc.StatusCode.PERMISSION_DENIED, message, reason="TOKENS_NOT_TOLD")
        place = _place_of(request)
        try:
            digest = bytes.fromhex(request.query_params.get("digest", ""))
        except ValueError:
            raise invalid_argument("digest", "must be hexadecimal") from None
        followed = self._tokens.get(place)
        ids = followed.get(digest) if followed is not None else None
        text = None if ids is None else self._decode(place.pool, ids)
        document = {"ids": ids, "text": text}
        return Response(to_json(document), headers={"cache-control": "no-store"}, media_type="application/json")

    async def _frames(self, feed: Feed) -> AsyncIterator[bytes]:
        with self._tokens_followed(feed.place):
            async with aclosing(feed.frames(Viewer())) as frames:
                async for frame in frames:
                    yield frame

    @contextmanager
    def _tokens_followed(self, place: Place) -> Iterator[None]:
        """Users' text is kept where that is allowed, and only as long as somebody looks at its pool."""
        if self._decode is None:
            yield
            return
        if place not in self._tokens:
            self._tokens[place] = TokenIds(self._hub.stub(place.manager), place.pool)
        self._viewers[place] += 1
        try:
            yield
        finally:
            self._viewers[place] -= 1
            if not self._viewers[place]:
                del self._viewers[place]
                self._tokens.pop(place).end()


def _place_of(request: Request) -> Place:
    manager, pool = (request.query_params.get(name, "") for name in ("manager", "pool"))
    if not manager or not pool:
        raise invalid_argument("pool" if manager else "manager", "is needed")
    return Place(manager, pool)
