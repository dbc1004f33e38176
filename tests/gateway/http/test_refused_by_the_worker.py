"""What a worker finds wrong with its request is told by the names of what the client sent, on either surface."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
import pytest
from gateway_http import Http
from google.protobuf.descriptor import Descriptor
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway import prompts, worker_errors
from gateway.errors import InvalidRequest
from gateway.generation import Generation, worker_request
from gateway.grammars import FORMAT
from gateway.http import fields
from gateway.http.completion_prompts import prompts_of
from gateway.http.conversation import messages_of
from gateway.http.errors import body_of, spelled
from gateway.messages import given_parameters, spelled_for
from gateway.models import ServedModel
from gateway.parameters import BY_NAME, Call, validate
from gateway.prompts import PROMPT, Prompt
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import Tokenizer
from gateway.tools.calling import calling_of
from model_worker.requests import ModelLimits, RequestReader
from octavo.gateway.v1 import gateway_pb2
from octavo.worker.v1 import worker_pb2
from service.errors import ServiceError

# Bounds far below what the gateway allows, of its vocabulary of 258 and context of 1000: most requests meet one.
SMALL = RequestReader(ModelLimits(vocab_size=150, max_context=24, eos_token_ids=frozenset({149}), max_samples=2))
# The gateway fills them, and no client can.
OWN = {"tenant", "resume", "resume.seed", "resume.samples"}
Request = gateway_pb2.GenerateRequest | gateway_pb2.ChatRequest
INNER = re.compile(r"\b(sampling|beam_search|stop|resume)\.|\btoken_ids\b|\bsalt\b")

OPTIONS = {
    "n": st.integers(1, 4),
    "best_of": st.integers(1, 4),
    "beam_width": st.integers(1, 4),
    "length_penalty": st.just(2.0),
    "max_tokens": st.integers(1, 8),
    "logprobs": st.integers(0, 3),
    "repetition_penalty": st.just(1.5),
    "logit_bias": st.dictionaries(st.sampled_from([7, 200]), st.just(1.0), max_size=2),
    "bad_words": st.just(["~~"]),
    "stop_token_ids": st.lists(st.sampled_from([7, 200]), max_size=2),
    "cache_salt": st.just("s"),
    "priority": st.integers(-3, 3),
}
TEXTS = st.sampled_from(["abc", "a longer one than the context of the worker", "~\u00e9"])
MESSAGES = TEXTS.map(lambda text: [{"role": "user", "content": text}])
REGEX = {"structured_outputs": {"regex": "a+"}}


def own_fields() -> Iterator[str]:
    """The worker's fields as its errors name them: two levels deep."""
    sorted_into = {"sampling", "stop", "beam_search", "resume"}
    for field in worker_pb2.GenerateRequest.DESCRIPTOR.fields:
        if field.name not in sorted_into:
            yield field.name
        else:
            yield from (f"{field.name}.{inner.name}" for inner in field.message_type.fields)


@pytest.mark.unit
@pytest.mark.parametrize("field", list(own_fields()))
def test_every_field_of_the_worker_is_a_parameter_or_the_gateways_own(field: str) -> None:
    error = ServiceError(grpc.StatusCode.INVALID_ARGUMENT, "m", reason="INVALID_REQUEST", fields={field: "wrong"})
    told = worker_errors.about_request("w:1", error, FORMAT)
    if field in OWN:
        assert isinstance(told, ServiceError)
        assert (told.code, told.fields) == (grpc.StatusCode.INTERNAL, {})
    else:
        assert isinstance(told, InvalidRequest)
        assert told.reason == "INVALID_FIELD"
        ((name, problem),) = told.problems.items()
        assert name in BY_NAME or name == PROMPT
        assert problem == "wrong"


@pytest.mark.unit
def test_other_errors_and_other_reasons_stay_what_they_are() -> None:
    large = ServiceError(grpc.StatusCode.INVALID_ARGUMENT, "m", reason="NEVER_FITS", fields={"token_ids": "large"})
    told = worker_errors.about_request("w:1", large, FORMAT)
    assert isinstance(told, InvalidRequest)
    assert (told.problems, told.reason) == ({PROMPT: "large"}, "NEVER_FITS")
    for code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT):
        error = ServiceError(code, "m", reason="SOME")
        assert worker_errors.about_request("w:1", error, FORMAT) is error


def refused_by_the_worker(generation: Generation) -> InvalidRequest | ServiceError | None:
    """What the gateway makes of the refusal of a worker with small bounds; None when it takes the request."""
    try:
        SMALL.read(worker_request(generation))
    except ServiceError as error:
        constraint = FORMAT if generation.grammar is None else generation.grammar.parameter
        return worker_errors.about_request("w:1", error, constraint, generation.prompt.name)
    return None


def generation_of(model: ServedModel, prompt: Prompt, call: Call, values: Mapping[str, Any]) -> Generation:
    parameters = validate(call, values, model.vocab_size)
    budget = prompts.token_budget(model, prompt, parameters, 16)
    calling = calling_of(model, parameters, "hermes")
    return Generation("id", model, prompt, parameters, budget, 0.0, lambda: None, calling)


@pytest.fixture(scope="module")
def model(toy_tokenizer: Tokenizer, toy_template: ChatTemplate) -> ServedModel:
    return ServedModel("bytes", "f", 258, 1000, toy_tokenizer, toy_template)


LEAN = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.property
@pytest.mark.parametrize("call", [Call.GENERATE, Call.CHAT])
@LEAN
@given(
    options=st.fixed_dictionaries({}, optional=OPTIONS),
    asked=st.sampled_from([{}, REGEX, {"echo": True}, {"logprobs": True, "top_logprobs": 2}, {"tool_choice": "none"}]),
    prompt=TEXTS,
    messages=MESSAGES,
)
@example(options={"beam_width": 4}, asked={}, prompt="abc", messages=[{"role": "user", "content": "abc"}])
@example(options={"n": 4, "max_tokens": 8}, asked={}, prompt="a" * 30, messages=[{"role": "user", "content": "a" * 30}])
@example(options={"beam_width": 2, "logprobs": 2}, asked={"echo": True}, prompt="abc", messages=[])
def test_over_http_the_field_is_one_that_the_body_has(
    model: ServedModel, call: Call, options: dict[str, Any], asked: dict[str, Any], prompt: str, messages: list[Any]
) -> None:
    body = {**options, **asked, **({"prompt": prompt} if call is Call.GENERATE else {"messages": messages})}
    if "logit_bias" in body:
        body["logit_bias"] = {str(id_): bias for id_, bias in body["logit_bias"].items()}
    error = refusal_over_http(model, call, body)
    if error is not None:
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        answer = body_of(error)["error"]
        assert re.split(r"[.\[]", answer["param"])[0] in body
        assert not INNER.search(answer["message"])


def refusal_over_http(model: ServedModel, call: Call, body: dict[str, Any]) -> ServiceError | None:
    names = {PROMPT: "messages"} if call is Call.CHAT else {}
    try:
        with spelled(names):
            read = fields.read(call, body)
        with spelled({**names, **read.names}):
            told = refused_by_the_worker(asyncio.run(_of_body(model, call, body, read)))
            if told is not None:
                raise told
    except ServiceError as error:
        return error
    return None


async def _of_body(model: ServedModel, call: Call, body: dict[str, Any], read: fields.Given) -> Generation:
    if call is Call.GENERATE:
        (prompt,) = await prompts_of(model, body, 1000)
    else:
        prompt = await prompts.from_messages(model, messages_of(body), 1000, continue_final_message=False)
    return generation_of(model, prompt, call, read.parameters)


@pytest.mark.unit
def test_one_of_several_prompts_is_named_by_its_place(model: ServedModel) -> None:
    """The context of the gateway holds 1,000 tokens, that of the worker 24: a byte each, and one to generate."""
    several = asyncio.run(prompts_of(model, {PROMPT: ["abc", "d" * 24, [7] * 999, "e" * 1000]}, 2000))
    parameters = validate(Call.GENERATE, {"max_tokens": 1}, model.vocab_size)
    told = []
    for prompt in several[:3]:
        error = refused_by_the_worker(Generation("id", model, prompt, parameters, 1, 0.0, lambda: None))
        told.append(error.problems if isinstance(error, InvalidRequest) else error)
    assert [problems and list(problems) for problems in told] == [None, ["prompt[1]"], ["prompt[2]"]]
    with pytest.raises(InvalidRequest) as caught:
        prompts.token_budget(model, several[3], parameters, 16)
    assert list(caught.value.problems) == ["prompt[3]"]


@pytest.mark.property
@pytest.mark.parametrize("call", [Call.GENERATE, Call.CHAT])
@LEAN
@given(options=st.fixed_dictionaries({}, optional=OPTIONS), text=TEXTS, as_ids=st.booleans())
@example(options={"beam_width": 4}, text="abc", as_ids=True)
@example(options={"cache_salt": "s", "n": 4}, text="abc", as_ids=True)
def test_over_grpc_the_path_leads_to_a_field_of_the_request(
    model: ServedModel, call: Call, options: dict[str, Any], text: str, as_ids: bool
) -> None:
    request: Request
    taken = gateway_pb2.GenerateOptions(**options)
    ids = model.tokenizer.encode(text)
    if call is Call.CHAT:
        message = gateway_pb2.ChatMessage(role="user", content=text)
        request = gateway_pb2.ChatRequest(messages=[message], options=taken)
    elif as_ids:
        request = gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=ids), options=taken)
    else:
        request = gateway_pb2.GenerateRequest(prompt=text, options=taken)
    error = refusal_over_grpc(model, call, request, ids)
    if error is not None:
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT
        assert error.fields
        assert [path for path in error.fields if not leads_somewhere(request.DESCRIPTOR, path)] == []


def refusal_over_grpc(model: ServedModel, call: Call, request: Request, ids: Sequence[int]) -> ServiceError | None:
    try:
        with spelled_for(request):
            told = refused_by_the_worker(generation_of(model, Prompt(ids, None), call, given_parameters(request)))
            if told is not None:
                raise told
    except ServiceError as error:
        return error
    return None


def leads_somewhere(descriptor: Descriptor, path: str) -> bool:
    name, _, rest = re.sub(r"\[\w+\]", "", path).partition(".")
    field = descriptor.fields_by_name.get(name)
    if field is None or not rest:
        return field is not None
    return field.message_type is not None and leads_somewhere(field.message_type, rest)


@pytest.mark.e2e
def test_both_surfaces_tell_the_fields_that_a_worker_named(start_worker: Any, start_gateway: Any) -> None:
    """The first field is the one that HTTP names; the worker's own names are on neither surface."""
    named = "beam_search.width,token_ids,sampling.top_k,stop.max_tokens"
    worker = start_worker("--broken", "INVALID_ARGUMENT", "--broken-fields", named)
    gateway = start_gateway(worker.address)
    http = Http(gateway.wait_event("ready")["http"])
    error = http.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}).error
    said = "broken, as asked for"
    assert error == {
        "message": f"beam_width: {said}; messages: {said}; top_k: {said}; max_tokens: {said}",
        "type": "invalid_request_error",
        "param": "beam_width",
        "code": "broken",
    }
    one_of_several = http.post("/v1/completions", {"prompt": ["a"]}).error
    assert one_of_several["message"] == f"beam_width: {said}; prompt[0]: {said}; top_k: {said}; max_tokens: {said}"
    with pytest.raises(grpc.RpcError) as caught:
        list(gateway.stub.Generate(gateway_pb2.GenerateRequest(prompt="a"), timeout=10))
    assert caught.value.details() == (
        f"options.beam_width: {said}; prompt: {said}; options.top_k: {said}; options.max_tokens: {said}"
    )
