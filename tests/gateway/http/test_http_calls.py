"""Bytes on the wire: real HTTP against a real gateway whose worker answers a prompt with the prompt, byte by byte.

One gateway and one worker for all tests; a body may have 100,000 bytes here, a prompt 50,000.
"""

import contextlib
import gzip
import json
import random
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gateway_http import post_of, read_answer

pytestmark = pytest.mark.e2e

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
ENDLESS = {"prompt": "abc", "max_tokens": 1_000_000, "ignore_eos": True}


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_a_completion_has_text_finish_and_usage(http: Any) -> None:
    # 3 prompt bytes are 3 tokens; 5 tokens of "abcabc..." are abcab; the toy reports half of the prompt as cached.
    answer = http.post(COMPLETIONS, {"model": "bytes", "prompt": "abc", "max_tokens": 5})
    (choice,) = answer.json["choices"]
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == ("abcab", "length", None)
    assert answer.json["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert answer.json["object"] == "text_completion"
    assert answer.headers["x-request-id"]
    assert "server" not in answer.headers


def test_all_four_forms_of_a_prompt(http: Any) -> None:
    def texts(prompt: Any) -> list[str]:
        answer = http.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 4, "echo": True})
        assert answer.json["usage"]["completion_tokens"] == 4 * len(answer.json["choices"])
        return [choice["text"] for choice in answer.json["choices"]]

    # Ids of letters are their ASCII code less 33: a b c are 64 65 66.
    assert texts("abc") == texts([64, 65, 66]) == ["abcabca"]
    assert texts(["abc", "xy"]) == texts([[64, 65, 66], "xy"]) == ["abcabca", "xyxyxy"]


def test_the_template_knows_the_names_of_chat_template_kwargs(http: Any) -> None:
    body = {"messages": user("hi"), "max_tokens": 1}
    plain = http.post(CHAT, body).json["usage"]["prompt_tokens"]
    # The toy's template writes the text of an aside twice.
    asides = {**body, "chat_template_kwargs": {"aside": {"text": "xyz"}, "enable_thinking": False}}
    assert http.post(CHAT, asides).json["usage"]["prompt_tokens"] == plain + 6


def test_a_stream_equals_the_whole_and_ends_with_done(http: Any) -> None:
    body = {"messages": user("é😀"), "max_tokens": 18}
    whole = http.post(CHAT, body).json["choices"][0]
    answer = http.post(CHAT, {**body, "stream": True})
    choices = [chunk["choices"][0] for chunk in answer.events]
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "".join(choice["delta"].get("content", "") for choice in choices) == whole["message"]["content"]
    # Each byte is a token: six of é😀 would be U+FFFD if a character were cut.
    assert "\ufffd" not in whole["message"]["content"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert all("usage" not in chunk for chunk in answer.events)


def test_several_answers_are_choices_of_their_own(http: Any) -> None:
    body = {"prompt": ["abc", "xy"], "n": 3, "max_tokens": 4, "stop": "ca"}
    whole = http.post(COMPLETIONS, body).json
    # Answer i begins at the prompt's byte i. abca, bca and ca end at the stop string, after 4, 3 and 2 tokens,
    # the others by length, after 4. Each prompt counts once, 3 + 2.
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3, 4, 5]
    assert [choice["text"] for choice in whole["choices"]] == ["ab", "b", "", "xyxy", "yxyx", "xyxy"]
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop"] * 3 + ["length"] * 3
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (5, 21)
    texts = [""] * 6
    *chunks, last = http.post(COMPLETIONS, {**body, "stream": True, "stream_options": {"include_usage": True}}).events
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert last["usage"] == whole["usage"]
    refused = http.post(COMPLETIONS, {"prompt": ["x"] * 5, "n": 128})
    assert (refused.status, refused.error["param"]) == (400, "prompt")


def test_usage_is_one_chunk_without_choices_and_only_when_asked_for(http: Any) -> None:
    """B70."""
    body = {"prompt": "abc", "max_tokens": 2, "stream": True}
    for options in (None, {}, {"include_usage": False}):
        chunks = http.post(COMPLETIONS, {**body, "stream_options": options}).events
        assert all("usage" not in chunk and len(chunk["choices"]) == 1 for chunk in chunks)
    *chunks, last = http.post(COMPLETIONS, {**body, "stream_options": {"include_usage": True}}).events
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 5)


def test_each_chunk_tells_the_usage_so_far_where_that_is_asked_for(http: Any) -> None:
    body = {"prompt": ["abc", "xy"], "max_tokens": 4, "stream": True}
    options = {"continuous_usage_stats": True}
    *chunks, last = http.post(COMPLETIONS, {**body, "stream_options": {**options, "include_usage": True}}).events
    told = [chunk["usage"] for chunk in chunks]
    # Both prompts count from the first chunk on, 3 + 2; answers of 4 tokens each are there when the last one ends.
    assert {usage["prompt_tokens"] for usage in told} == {5}
    generated = [usage["completion_tokens"] for usage in told]
    assert generated == sorted(generated)
    assert 1 <= generated[0] < generated[-1] == 8
    assert all(usage["total_tokens"] == 5 + usage["completion_tokens"] for usage in told)
    assert told[-1].items() <= last["usage"].items()
    alone = http.post(COMPLETIONS, {**body, "stream_options": options}).events
    assert alone[-1]["choices"]
    assert alone[-1]["usage"] == told[-1]


def test_what_stops_may_be_asked_for(http: Any) -> None:
    body = {"prompt": "one two stop here", "max_tokens": 100, "include_stop_str_in_output": True}
    (choice,) = http.post(COMPLETIONS, {**body, "stop": " stop"}).json["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("one two stop", "stop", " stop")
    # Letters are their ASCII code less 33.
    (choice,) = http.post(COMPLETIONS, {**body, "stop_token_ids": [ord("w") - 33]}).json["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("one tw", str(ord("w") - 33))


def test_stop_strings_end_the_text_and_the_worker(http: Any, toy: Any) -> None:
    body = {"prompt": "one two stop here", "max_tokens": 100_000, "stop": " stop"}
    (choice,) = http.post(COMPLETIONS, body).json["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("one two", "stop", " stop")
    assert toy.wait_event("ended", how="cancelled")["sent"] < 100_000
    chunks = http.post(COMPLETIONS, {**body, "stop": ["never", "o s"], "stream": True}).events
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "one tw"


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "code"),
    [
        (COMPLETIONS, {"prompt": ""}, 400, "prompt", "invalid_value"),
        (COMPLETIONS, {"prompt": []}, 400, "prompt", "invalid_value"),
        (COMPLETIONS, {"prompt": [[]]}, 400, "prompt[0]", "invalid_value"),
        (COMPLETIONS, {"prompt": None}, 400, "prompt", "invalid_value"),
        (COMPLETIONS, {"prompt": {"a": 1}}, 400, "prompt", "invalid_value"),
        (COMPLETIONS, {"prompt": [1, 258]}, 400, "prompt[1]", "invalid_value"),
        (COMPLETIONS, {"prompt": ["ok", [1, -1]]}, 400, "prompt[1][1]", "invalid_value"),
        (COMPLETIONS, {"prompt": [1, 2.5]}, 400, "prompt[1]", "invalid_value"),
        (COMPLETIONS, {"prompt": [1, True]}, 400, "prompt[1]", "invalid_value"),
        (COMPLETIONS, {"prompt": [1, 10**30]}, 400, "prompt[1]", "invalid_value"),
        (COMPLETIONS, {"prompt": ["x"] * 129}, 400, "prompt", "invalid_value"),
        (COMPLETIONS, {"prompt": "x" * 60_000}, 400, "prompt", "invalid_value"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, 400, "max_tokens", "invalid_value"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0, "echo": True}, 400, "max_tokens", "invalid_value"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 7_000_000}, 400, "max_tokens", "context_length_exceeded"),
        (COMPLETIONS, {"prompt": "x", "model": "other"}, 404, "model", "model_not_found"),
        (COMPLETIONS, {"prompt": "FULL", "max_tokens": 9}, 429, None, "queue_full"),
        (COMPLETIONS, {"prompt": "BREAK", "max_tokens": 9}, 500, None, "worker_failed"),
        (CHAT, {}, 400, "messages", "invalid_value"),
        (CHAT, {"messages": []}, 400, "messages", "invalid_value"),
        (CHAT, {"messages": user("refuse me")}, 400, "messages", "invalid_value"),
        (CHAT, {"messages": user(None)}, 400, "messages[0].content", "invalid_value"),
        (CHAT, {"messages": [{"role": "boss", "content": "x"}]}, 400, "messages[0].role", "invalid_value"),
        (CHAT, {"messages": user("x"), "tools": [{}]}, 400, "tools[0].function", "invalid_value"),
        (CHAT, {"messages": user("x"), "max_completion_tokens": 0}, 400, "max_completion_tokens", "invalid_value"),
        (CHAT, {"messages": user("x"), "max_token": 1}, 400, "max_token", "unknown_parameter"),
    ],
)
def test_errors_have_openais_shape(http: Any, path: str, body: Any, status: int, param: str | None, code: str) -> None:
    """B67, B72: what cannot be generated from is named, and the service goes on."""
    for stream in (False, True) if status == 400 else (False,):
        answer = http.post(path, {**body, "stream": stream})
        assert (answer.status, answer.error["param"], answer.error["code"]) == (status, param, code)
        assert answer.headers["x-request-id"]
    if status == 429:
        assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("3", "2500")


def test_an_error_behind_the_first_event_is_an_event_and_no_done_follows(http: Any) -> None:
    answer = http.post(COMPLETIONS, {"prompt": "FULL", "max_tokens": 9, "stream": True})
    first, last, rest = answer.body.decode().split("\n\n")
    assert (answer.status, rest) == (200, "")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "F"
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "queue_full"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": "\xe9"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x"} trailing',
        b"[" * 5000,
        b'{"a":' * 5000,
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(http: Any, body: bytes) -> None:
    answer = http.post(COMPLETIONS, body)
    assert (answer.status, answer.error["code"]) == (400, "invalid_json")


def test_a_number_beyond_the_floats_is_refused_by_its_field(http: Any) -> None:
    answer = http.post(COMPLETIONS, b'{"prompt": "x", "temperature": 1e999}')
    assert (answer.status, answer.error["param"]) == (400, "temperature")


def test_types_sizes_paths_and_methods_have_statuses_of_their_own(http: Any) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert http.post(COMPLETIONS, {"prompt": "x"}, content_type=kind).error["code"] == "unsupported_media_type"
    assert (
        http.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1}, content_type="Application/JSON; charset=utf-8").status
        == 200
    )
    compressed = http.post(COMPLETIONS, gzip.compress(b'{"prompt": "x"}'), content_encoding="gzip")
    assert (compressed.status, compressed.error["code"]) == (415, "unsupported_encoding")
    assert http.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1}, content_encoding="identity").status == 200
    large = http.post(COMPLETIONS, {"prompt": "x" * 100_000})
    assert (large.status, large.error["code"], large.headers["connection"]) == (413, "request_too_large", "close")
    for path in ("/", "/v1", "/v1/embeddings", "/v1/completions/"):
        assert http.get(path).error["code"] == "not_found"
    wrong = http.get(COMPLETIONS)
    assert (wrong.status, wrong.error["code"], wrong.headers["allow"]) == (405, "method_not_allowed", "POST")


def test_a_chunked_body_is_bounded_without_a_declared_length(http: Any) -> None:
    body = json.dumps({"prompt": "abc", "max_tokens": 1}).encode()
    halves = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:9], body[9:]))
    chunked = {"content_length": "", "transfer_encoding": "chunked"}
    assert http.post(COMPLETIONS, halves + b"0\r\n\r\n", **chunked).status == 200
    answer = http.post(COMPLETIONS, b"%x\r\n%s\r\n" % (100_001, b" " * 100_001), **chunked)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the start of TLS
        b"GET / HTTP/1.1\r\n\r\n",  # no host
        b"GET / HTTP/1.1\r\nhost: t\r\nbad header\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: t\r\n" + b"x: " + b"y" * 400_000 + b"\r\n\r\n",
    ],
)
def test_what_is_no_http_is_answered_400_and_closed(http: Any, data: bytes) -> None:
    with http.connect() as connection:
        with contextlib.suppress(ConnectionError):  # it may be closed before all was sent
            connection.sendall(data)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    assert http.get("/health").status == 200


def test_the_request_id_is_the_clients_made_unique(http: Any, toy: Any) -> None:
    body = {"prompt": "abc", "max_tokens": 1}
    first, second = (http.post(COMPLETIONS, body, x_request_id="mine").headers["x-request-id"] for _ in range(2))
    assert first.startswith("mine-")
    assert second.startswith("mine-")
    assert first != second
    assert toy.wait_event("request", request_id=second)
    for odd in ("a b", "x" * 200, "\u00e9"):
        assert odd not in http.post(COMPLETIONS, body, x_request_id=odd).headers["x-request-id"]


def test_models_health_and_metrics(http: Any) -> None:
    (model,) = http.get("/v1/models").json["data"]
    assert (model["id"], model["object"], model["ready_workers"]) == ("bytes", "model", 1)
    assert http.get("/v1/models/bytes").json == model
    assert http.get("/v1/models/some/body").error["code"] == "model_not_found"
    assert (http.get("/health").status, http.get("/livez").status) == (200, 200)
    page = http.get("/metrics").body.decode()
    assert 'octavo_gateway_calls_total{code="OK",method="/v1/completions"}' in page
    assert "octavo_gateway_ready 1.0" in page
    opened = http.get("/metrics", accept="application/openmetrics-text")
    assert (opened.headers["content-type"].split(";")[0], opened.body[-6:]) == (
        "application/openmetrics-text",
        b"# EOF\n",
    )


def test_only_named_origins_may_call_from_a_page(http: Any) -> None:
    asked = b"OPTIONS /v1/completions HTTP/1.1\r\nhost: t\r\norigin: %s\r\naccess-control-request-method: POST\r\n\r\n"
    assert http.send(asked % b"https://page.test").headers["access-control-allow-origin"] == "https://page.test"
    assert "access-control-allow-origin" not in http.send(asked % b"https://other.test").headers


def test_a_connection_serves_many_requests(http: Any) -> None:
    with http.connect() as connection:
        for count, text in enumerate(("a", "ab", "aba"), start=1):
            connection.sendall(post_of(COMPLETIONS, json.dumps({"prompt": "ab", "max_tokens": count}).encode()))
            assert read_answer(connection).json["choices"][0]["text"] == text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_workers_call(http: Any, toy: Any, stream: bool) -> None:
    request_id = f"leaver-{stream}"
    connection = http.open(COMPLETIONS, {**ENDLESS, "stream": stream}, x_request_id=request_id)
    name = toy.wait_for(lambda event: event.get("event") == "request" and event["request_id"].startswith(request_id))[
        "request_id"
    ]
    if stream:
        assert connection.recv(10_000).startswith(b"HTTP/1.1 200 ")
    connection.close()
    assert toy.wait_event("ended", request_id=name)["how"] == "cancelled"


def test_a_client_that_leaves_while_it_uploads_is_no_request(http: Any, gateway: Any) -> None:
    with http.connect() as connection:
        connection.sendall(post_of(COMPLETIONS, b"{", content_length="999"))
    gateway.wait_for(lambda event: "CANCELLED" in str(event.get("message", "")))
    assert http.get("/health").status == 200


def test_closings_that_race_the_last_event_end_every_call_once(http: Any, toy: Any) -> None:
    def take(number: int, seconds: float) -> float | None:
        """How long an answer of 10 tokens took; None when the client closed before its end, after ``seconds``."""
        begun = time.monotonic()
        data = b""
        with http.open(COMPLETIONS, {**ENDLESS, "max_tokens": 10, "stream": number % 2 == 0}) as connection:
            while not data.endswith((b"0\r\n\r\n", b"}}}")):
                left = begun + seconds - time.monotonic()
                if left <= 0:
                    return None
                connection.settimeout(left)
                with contextlib.suppress(TimeoutError):
                    data += connection.recv(10_000)
        return time.monotonic() - begun

    with ThreadPoolExecutor(8) as pool:
        usual = statistics.median(took for took in pool.map(take, range(16), [60.0] * 16) if took is not None)
        # Closings from an eighth to eight times what is usual, most of them near it, in any order.
        patience = [usual * 8 ** (number / 100 - 1) ** 3 for number in range(200)]
        ended = list(pool.map(take, range(200), random.Random(0).sample(patience, 200)))
    # Both kinds, also when the machine's pace changes.
    assert 0 < ended.count(None) < 200
    for _ in range(16 + 200 - ended.count(None)):
        assert toy.wait_event("ended", how="finished")


def test_silence_before_the_first_token_gets_comments_and_leaving_then_ends_it(http: Any, toy: Any) -> None:
    # A stopped worker is silent; the gateway counts it as lost only after 3 s without an answer.
    toy.signal(signal.SIGSTOP)
    try:
        connection = http.open(COMPLETIONS, {**ENDLESS, "stream": True}, x_request_id="silent")
        data = b""
        while data.count(b": waiting\n\n") < 2:
            received = connection.recv(10_000)
            assert received, data
            data += received
        assert b"data:" not in data
        connection.close()
    finally:
        toy.signal(signal.SIGCONT)
    # The call that was cancelled before the worker read it ends at once, if the worker ever saw it.
    assert http.post(COMPLETIONS, {"prompt": "ab", "max_tokens": 1}).status in (200, 503)
    wait_idle(http)


def wait_idle(http: Any) -> None:
    """Until no call is under way: what a client hears last comes a moment before it is counted."""
    deadline = time.monotonic() + 60
    running = [""]
    while not all(line.endswith(" 0.0") for line in running):
        page = http.get("/metrics").body.decode()
        running = [line for line in page.splitlines() if line.startswith("octavo_gateway_running_calls{")]
        assert running
        assert time.monotonic() < deadline, running


def test_nothing_was_left_running_and_nothing_was_complained_of(http: Any, gateway: Any, toy: Any) -> None:
    wait_idle(http)
    gateway.signal(signal.SIGTERM)
    gateway.all_events("")
    assert gateway.process.returncode == 0
    # What all tests of this file made the gateway log: of both surfaces in one loop no line that is no log entry, no
    # exception, and no warning but those of bytes that are no HTTP, and of the worker where it was stopped for longer
    # than the test meant to.
    warnings = {event["message"] for event in gateway.seen if event.get("level") in ("WARNING", "ERROR")}
    missed = f"worker {toy.address} cannot be used"
    assert {message for message in warnings if not message.startswith(missed)} == {"Invalid HTTP request received."}
    assert [event for event in gateway.seen if "exception" in event or "line" in event] == []
