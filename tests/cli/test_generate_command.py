"""``octavo generate`` and ``octavo chat`` as processes, against a gateway that follows a script."""

import json
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.e2e


def test_text_goes_to_stdout_and_usage_to_stderr(gateway: Any, octavo: Any) -> None:
    done = octavo(["generate", "four words and more", "--address", gateway.address])
    assert done.returncode == 0
    assert done.stdout == "four words and more\n"
    assert done.stderr == (
        "[7 prompt tokens, 4 of them cached; 9 generated in 0.75 s, the first after 0.25 s, 16.0 tokens/s; length]\n"
    )


def test_every_option_reaches_the_gateway_and_absent_ones_stay_absent(gateway: Any, octavo: Any) -> None:
    options = ["--max-tokens", "3", "--temperature", "0", "--top-p", "0.5", "--top-k", "7", "--min-p", "0.1"]
    more = ["--seed", "11", "--stop", "END", "--stop", "\n", "--ignore-eos", "--model", "parrot"]
    octavo(["generate", "a", *options, *more, "--address", gateway.address])
    octavo(["generate", "b", "--address", gateway.address])
    given, absent = (request.options for request in gateway.servicer.requests)
    assert gateway.servicer.requests[0].model == "parrot"
    assert (given.max_tokens, given.temperature, given.top_p, given.top_k) == (3, 0, 0.5, 7)
    assert (given.min_p, given.seed, list(given.stop), given.ignore_eos) == (0.1, 11, ["END", "\n"], True)
    assert given.HasField("temperature")  # 0 is greedy, absent is 1
    assert not absent.ListFields()


def test_sampling_options_reach_the_gateway(gateway: Any, octavo: Any) -> None:
    options = ["--typical-p", "0.9", "--repetition-penalty", "1.2", "--presence-penalty", "-0.5", "--min-tokens", "2"]
    more = ["--frequency-penalty", "0.25", "--logit-bias", "7=-5", "--logit-bias", "8=2.5", "--bad-word", "no way"]
    octavo(["generate", "a", *options, *more, "--logprobs", "0", "--json", "--address", gateway.address])
    (given,) = (request.options for request in gateway.servicer.requests)
    assert (given.typical_p, given.repetition_penalty, given.presence_penalty) == (0.9, 1.2, -0.5)
    assert (given.frequency_penalty, dict(given.logit_bias)) == (0.25, {7: -5.0, 8: 2.5})
    assert (list(given.bad_words), given.min_tokens) == (["no way"], 2)
    assert (given.HasField("logprobs"), given.logprobs, given.HasField("prompt_logprobs")) == (True, 0, False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--logit-bias", "7"], "7 is not ID=BIAS"),
        (["--logit-bias", "AI=1"], "AI=1 is not ID=BIAS"),
        (["--logprobs", "1"], "log-probabilities are printed with --json only"),
    ],
)
def test_a_malformed_sampling_option_is_named(octavo: Any, options: list[str], said: str) -> None:
    done = octavo(["generate", "a", *options, "--address", "127.0.0.1:1"])
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_json_lists_the_logprobs_that_came(gateway: Any, octavo: Any) -> None:
    done = octavo(["generate", "x y", "--json", "--logprobs", "1", "--address", gateway.address])
    assert json.loads(done.stdout)["logprobs"] == [
        {"token_id": token, "text": "t", "logprob": -0.5, "top": [{"token_id": 9, "text": "u", "logprob": -1.5}]}
        for token in (0, 1)
    ]


def test_a_prompt_from_stdin_keeps_its_line_breaks(gateway: Any, octavo: Any) -> None:
    done = octavo(["generate", "-", "--address", gateway.address], stdin="one\ntwo\n")
    assert gateway.servicer.requests[0].prompt == "one\ntwo\n"
    assert done.stdout == "one\ntwo\n\n"


def test_json_is_one_object(gateway: Any, octavo: Any) -> None:
    done = octavo(["generate", "x y", "--json", "--address", gateway.address])
    answer = json.loads(done.stdout)
    assert (answer["text"], answer["token_ids"], answer["finish_reason"]) == ("x y", [0, 1], "length")
    assert (answer["usage"]["cached_tokens"], answer["usage"]["preemptions"]) == (4, 0)


def test_several_answers_are_printed_whole_and_in_order(gateway: Any, octavo: Any) -> None:
    options = ["--n", "2", "--best-of", "3", "--address", gateway.address]
    done = octavo(["generate", "one uno two dos", *options])
    assert done.stdout == "one two\nuno dos\n"
    assert len(done.stderr.splitlines()) == 2
    done = octavo(["generate", "one uno two dos", "--json", *options])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["index"], line["text"], line["token_ids"]) for line in lines] == [
        (0, "one two", [0, 2]), (1, "uno dos", [1, 3])
    ]  # fmt: skip
    assert {(one.options.n, one.options.best_of) for one in gateway.servicer.requests} == {(2, 3)}
    octavo(["generate", "a", "--beam-width", "4", "--length-penalty", "0.5", "--address", gateway.address])
    beams = gateway.servicer.requests[-1].options
    assert (beams.beam_width, beams.length_penalty, beams.HasField("n")) == (4, 0.5, False)


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        (
            "fail",
            "octavo: invalid argument: temperature: must be at least 0, found -1; "
            "options.top_p: must lie in (0, 1], found 2\n",
        ),
        ("loading", "octavo: unavailable: no worker is ready (NO_WORKER)\n"),
    ],
)
def test_what_the_gateway_refuses_is_one_line(gateway: Any, octavo: Any, prompt: str, line: str) -> None:
    done = octavo(["generate", prompt, "--address", gateway.address])
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


def test_nobody_at_the_address_is_one_line(octavo: Any) -> None:
    with socket.socket() as reserved:  # bound but not listening: a connection is refused
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        done = octavo(["generate", "hello", "--address", address])
    assert done.returncode == 1
    assert done.stderr.startswith(f"octavo: no gateway answers at {address}: is `octavo serve` running there?")
    assert done.stderr.count("\n") == 1


def test_another_service_at_the_address_is_one_line(gateway: Any, octavo: Any) -> None:
    done = octavo(["inspect", "--address", gateway.address])
    assert done.returncode == 1
    assert done.stderr.startswith(f"octavo: what answers at {gateway.address} is no Octavo KV manager")


def test_timeout_ends_the_request(gateway: Any, octavo: Any) -> None:
    done = octavo(["generate", "hang", "--timeout", "3", "--address", gateway.address])
    assert done.returncode == 1
    assert "octavo: the answer broke off: deadline exceeded from the gateway" in done.stderr
    assert gateway.servicer.cancelled.wait(120)


def test_ctrl_c_cancels_the_request(gateway: Any) -> None:
    command = [sys.executable, "-m", "cli.main", "generate", "hang", "--address", gateway.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(4) == "hang"
        process.send_signal(signal.SIGINT)
        assert gateway.servicer.cancelled.wait(120)
        assert process.wait(120) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_chat_keeps_what_was_said(gateway: Any, octavo: Any) -> None:
    lines = ["hello", "again", "/reset", "anew", "/system Be brief.", "hello", "/exit", "never read"]
    done = octavo(["chat", "--address", gateway.address], stdin="\n".join(lines))
    assert done.returncode == 0
    # Messages per request: [u], [u a u], reset: [u], system: [s u].
    assert done.stdout == "1 messages\n3 messages\n1 messages\n2 messages\n"
    assert "parrot at" in done.stderr
    roles = [[message.role for message in request.messages] for request in gateway.servicer.requests]
    assert roles == [["user"], ["user", "assistant", "user"], ["user"], ["system", "user"]]
    assert gateway.servicer.requests[1].messages[1].content == "1 messages"


def test_a_failed_turn_leaves_no_trace_and_the_chat_goes_on(gateway: Any, octavo: Any) -> None:
    done = octavo(["chat", "--system", "S", "--address", gateway.address], stdin="fail\nhello\n/nonsense\n")
    assert done.returncode == 0
    assert "octavo: invalid argument: messages: too long" in done.stderr
    assert "no command /nonsense" in done.stderr
    assert [message.content for message in gateway.servicer.requests[1].messages] == ["S", "hello"]
