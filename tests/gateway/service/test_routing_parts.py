"""The pure parts of routing: the circuit, the ledger of what workers were given, and the cost formula."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gateway.circuit import FAILURES, LONGEST_PAUSE_SECONDS, TRIAL_SECONDS, Circuit
from gateway.routing_cost import Candidate, cheapest, cost
from gateway.workload import BOOKED_SECONDS, SAMPLE_TOKENS, STRIDE_TOKENS, Booking, Workload, chain_of, to_bytes

pytestmark = pytest.mark.unit


def broken(circuit: Circuit, now: float) -> None:
    """One call that fails."""
    circuit.begin(now)
    circuit.failed(now)


def test_failures_in_a_row_open_a_circuit_for_a_growing_time() -> None:
    circuit = Circuit()
    for _ in range(FAILURES - 1):
        broken(circuit, 0.0)
        assert circuit.takes_calls(0.0)
    broken(circuit, 0.0)
    now = 0.0
    for pause in (1, 2, 4, 8, 16, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS):
        assert not circuit.takes_calls(now + pause - 0.001)
        now += pause
        assert circuit.takes_calls(now)
        broken(circuit, now)  # the trial


def test_one_call_tries_a_circuit_whose_pause_is_over() -> None:
    circuit = Circuit()
    for _ in range(FAILURES):
        broken(circuit, 0.0)
    circuit.begin(1.0)
    assert not circuit.takes_calls(1.5)
    circuit.failed(1.6)  # 1.6 + 2 s
    assert not circuit.takes_calls(3.5)
    circuit.begin(3.6)
    circuit.answered()
    assert circuit.takes_calls(3.7)


def test_a_trial_that_breaks_after_its_first_answer_opens_the_circuit_for_longer() -> None:
    circuit = Circuit()
    for _ in range(FAILURES):
        broken(circuit, 0.0)
    circuit.begin(1.0)
    circuit.answered()
    circuit.failed(2.0)
    assert not circuit.takes_calls(3.9)  # 2 + 2 s
    circuit.begin(4.0)
    circuit.answered()
    circuit.succeeded()
    for _ in range(FAILURES - 1):
        broken(circuit, 5.0)
    assert circuit.takes_calls(5.0)


def test_a_trial_that_never_tells_gives_way_to_another() -> None:
    circuit = Circuit()
    for _ in range(FAILURES):
        broken(circuit, 0.0)
    circuit.begin(1.0)
    assert not circuit.takes_calls(1.0 + TRIAL_SECONDS - 0.1)
    assert circuit.takes_calls(1.0 + TRIAL_SECONDS)


def test_calls_that_began_before_a_circuit_opened_do_not_lengthen_its_pause() -> None:
    circuit = Circuit()
    for _ in range(FAILURES + 20):
        circuit.begin(0.0)
    for _ in range(FAILURES + 20):
        circuit.failed(0.5)
    assert circuit.takes_calls(1.5)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_request_counts_from_its_routing_to_its_end() -> None:
    workload = Workload(Clock())
    workload.book("a", (), 700)
    assert (workload.tokens, workload.samples) == (700, 0)
    call = workload.begin("a", 1000, samples=2, max_tokens=10)
    assert (workload.tokens, workload.samples) == (700 + 2 * 10, 2)
    workload.started(call)
    assert workload.tokens == 20
    workload.end(call)
    assert (workload.tokens, workload.samples) == (0, 0)
    unbooked = workload.begin("b", 1000, samples=1, max_tokens=10**6)
    assert workload.tokens == 1000 + SAMPLE_TOKENS
    workload.end(unbooked)
    assert workload.tokens == 0


def test_a_request_whose_caller_left_is_forgotten() -> None:
    clock = Clock()
    workload = Workload(clock)
    chain = chain_of(b"", to_bytes(range(STRIDE_TOKENS)))
    workload.book("left", chain, 500)
    clock.now = BOOKED_SECONDS - 0.1
    workload.book("later", (), 30)
    assert (workload.tokens, workload.shared_tokens(chain)) == (530, STRIDE_TOKENS)
    clock.now = BOOKED_SECONDS
    assert (workload.tokens, workload.shared_tokens(chain)) == (30, 0)


def test_prompts_of_different_roots_share_nothing() -> None:
    tokens = to_bytes(range(1000))
    workload = Workload(Clock())
    workload.book("a", chain_of(b"tenant", tokens), 1000)
    assert workload.shared_tokens(chain_of(b"tenant", tokens)) == 1000 // STRIDE_TOKENS * STRIDE_TOKENS
    assert workload.shared_tokens(chain_of(b"other", tokens)) == 0


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.sampled_from(["book", "begin", "start", "end"]))))
def test_the_ledger_equals_a_recount(events: list[tuple[int, int, str]]) -> None:
    """Prompts of the form 0 0 0 ... w w w: any two share the shorter run of zeros, or more when w is the same."""
    workload = Workload(Clock())
    booked: dict[str, tuple[list[int], int]] = {}
    live: list[tuple[list[int], Booking, bool]] = []
    prompts: list[list[int]] = []
    for number, (length, word, event) in enumerate(events):
        prompt = [0] * length + [word] * 70
        prompts.append(prompt)
        if event == "book":
            booked[f"{number % 3}"] = (prompt, length)
            workload.book(f"{number % 3}", chain_of(b"", to_bytes(prompt)), length)
        elif event == "begin" and booked:
            name, (begun, _) = booked.popitem()
            live.append((begun, workload.begin(name, len(begun), 1, 5), False))
        elif event == "start" and live:
            begun, booking, _ = live.pop()
            workload.started(booking)
            live.append((begun, booking, True))
        elif event == "end" and live:
            workload.end(live.pop(0)[1])
    expected = sum(length for _, length in booked.values())
    expected += sum(5 + (0 if started else len(begun) - 70) for begun, _, started in live)
    assert workload.tokens == expected
    held = [prompt for prompt, _ in booked.values()] + [begun for begun, _, _ in live]
    for prompt in prompts:
        longest = max((common(prompt, other) // STRIDE_TOKENS for other in held), default=0)
        assert workload.shared_tokens(chain_of(b"", to_bytes(prompt))) == longest * STRIDE_TOKENS


def common(one: list[int], other: list[int]) -> int:
    """Length of the common prefix."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_the_published_formula() -> None:
    """docs/routing.md: 2 * (6,100 - 6,000) + 11,000 = 11,200 against 2 * 6,100 + 0 = 12,200."""
    warm, cold = Candidate("warm", 6_000, 11_000), Candidate("cold", 0, 0)
    assert (cost(warm, 6_100), cost(cold, 6_100)) == (11_200, 12_200)
    assert cheapest([cold, warm], 6_100) is warm
    # 12,100 more tokens of load and the prefix is computed anew where there is room.
    assert cheapest([Candidate("warm", 6_000, 12_001), cold], 6_100) is cold
    assert cheapest([warm, cold], 6_100, prefix_weight=1.0) is cold


def test_ties_go_to_the_least_load_and_then_to_the_most_room() -> None:
    # 2 * (100 - 90) + 0 = 2 * (100 - 95) + 10 = 20
    assert cheapest([Candidate("loaded", 95, 10), Candidate("free", 90, 0)], 100).place == "free"
    assert cost(Candidate("whole", 100, 0), 100) == 2
    # Nothing cached and nobody busy: where a new prefix makes nothing else be forgotten.
    assert cheapest([Candidate("full", 0, 0, 3), Candidate("empty", 0, 0, 90)], 100).place == "empty"
