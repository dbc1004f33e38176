"""What a worker was given from here and has not done yet, in tokens: the load that routing weighs.

A request counts from the moment it is routed, not from the moment its worker admits it, and its prompt counts as part
of that worker's cache from then on. So a burst of one prefix is seen as such before its first token is computed.

    routed            the prompt's tokens that are not cached
    call begun        and what its samples may generate
    first token       what its samples may generate; the prompt stays known as cached
    call ended        nothing
"""

import hashlib
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

# Prompts in flight are compared in steps of this many tokens: finer costs more and tells little.
STRIDE_TOKENS = 64
# Looking at this many ids takes about a millisecond.
IDS_AT_ONCE = 16384
# What one sample counts for while it runs. Its max_tokens is a bound that few answers reach.
SAMPLE_TOKENS = 128
# A request whose caller left between routing and call.
BOOKED_SECONDS = 5.0


def to_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as u32 little-endian; in slices, so that a thread that makes many lets others run."""
    ids = array("I")
    for start in range(0, len(token_ids), IDS_AT_ONCE):
        ids.extend(token_ids[start : start + IDS_AT_ONCE])
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def chain_of(world: bytes, token_bytes: bytes) -> tuple[bytes, ...]:
    """One link per full stride of a prompt: equal links mean equal tokens from the start on, of an equal world.

    Args:
        world: what keeps prompts apart whatever their tokens are: the prefix root.
        token_bytes: the ids, as from ``to_bytes``.
    """
    return tuple(_links(world, token_bytes))


def _links(world: bytes, token_bytes: bytes) -> Iterator[bytes]:
    running = hashlib.blake2b(world, digest_size=16)
    step = 4 * STRIDE_TOKENS
    for end in range(step, len(token_bytes) + 1, step):
        running.update(token_bytes[end - step : end])
        yield running.digest()


@dataclass(slots=True, eq=False)
class Booking:
    """One request on one worker.

    Attributes:
        chain: its prompt's links.
        prompt_tokens: tokens of it that the worker has to compute before its first token.
        samples: how many it generates.
        sample_tokens: what they may generate and are counted for.
        booked: when it was routed.
    """

    chain: tuple[bytes, ...]
    prompt_tokens: int
    booked: float
    samples: int = 0
    sample_tokens: int = 0


class Workload:
    """The requests of one worker. Belongs to the event loop.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._booked: dict[str, Booking] = {}
        self._holders: dict[bytes, int] = {}
        self._tokens = 0
        self._samples = 0
        self._calls = 0

    @property
    def idle(self) -> bool:
        """Whether nothing was routed here that has not ended."""
        self._forget_stale()
        return not self._booked and not self._calls

    @property
    def tokens(self) -> int:
        """Tokens to compute for all requests routed here: prompts up to their first token, and samples."""
        self._forget_stale()
        return self._tokens

    @property
    def samples(self) -> int:
        """Samples of the calls under way."""
        return self._samples

    def shared_tokens(self, chain: Sequence[bytes]) -> int:
        """How many tokens of a prompt its worker computes or has computed for a request that lives."""
        self._forget_stale()
        known = 0
        for link in chain:
            if link not in self._holders:
                break
            known += 1
        return known * STRIDE_TOKENS

    def book(self, request_id: str, chain: tuple[bytes, ...], prompt_tokens: int) -> None:
        """A request was routed here; its call is expected to begin soon."""
        if request_id in self._booked:
            self._remove(self._booked.pop(request_id))
        booking = Booking(chain, prompt_tokens, self._clock())
        self._booked[request_id] = booking
        self._add(booking)

    def begin(self, request_id: str, prompt_tokens: int, samples: int, max_tokens: int) -> Booking:
        """A call begins; one that nobody booked counts with its whole prompt."""
        booking = self._booked.pop(request_id, None)
        if booking is None:
            booking = Booking((), prompt_tokens, self._clock())
            self._add(booking)
        booking.samples = samples
        booking.sample_tokens = samples * min(max_tokens, SAMPLE_TOKENS)
        self._calls += 1
        self._samples += samples
        self._tokens += booking.sample_tokens
        return booking

    def started(self, booking: Booking) -> None:
        """The first token came: the prompt is computed."""
        self._tokens -= booking.prompt_tokens
        booking.prompt_tokens = 0

    def end(self, booking: Booking) -> None:
        """The call ended, however it did."""
        self._calls -= 1
        self._remove(booking)

    def _remove(self, booking: Booking) -> None:
        self._tokens -= booking.prompt_tokens + booking.sample_tokens
        self._samples -= booking.samples
        for link in booking.chain:
            left = self._holders[link] - 1
            if left:
                self._holders[link] = left
            else:
                del self._holders[link]

    def _add(self, booking: Booking) -> None:
        self._tokens += booking.prompt_tokens
        for link in booking.chain:
            self._holders[link] = self._holders.get(link, 0) + 1

    def _forget_stale(self) -> None:
        """Bookings are in the order of their time: only the oldest ones can be stale."""
        while self._booked:
            request_id, oldest = next(iter(self._booked.items()))
            if self._clock() - oldest.booked < BOOKED_SECONDS:
                return
            self._remove(self._booked.pop(request_id))
