"""The words of ``VllmEngine`` against ours: requests, answers, stop strings, the tokenizer's archive."""

import hashlib
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import grpc
import pytest
from llguidance import LLMatcher
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2
from tokenizers import Tokenizer, decoders, models

from model_worker.vllm_face.answers import Answers
from model_worker.vllm_face.archive import CHUNK_BYTES, archive, pieces
from model_worker.vllm_face.requests import one_of, own_request
from model_worker.vllm_face.stops import StopReader, StopStrings
from octavo.worker.v1 import sampling_pb2, worker_pb2
from service.errors import ServiceError

pytestmark = pytest.mark.unit


def request(stream: bool = False, **params: Any) -> Any:
    prompt = vllm_pb2.TokenizedInput(input_ids=[11, 12, 13])
    return vllm_pb2.GenerateRequest(
        request_id="r", tokenized=prompt, stream=stream, sampling_params=vllm_pb2.SamplingParams(**params)
    )


def test_the_page_names_every_call_and_parameter() -> None:
    page = (Path(__file__).parents[2] / "docs" / "vllm_face.md").read_text()
    named = {word for line in page.splitlines() if line.startswith("|") for word in re.findall(r"`(\w+)`", line)}
    calls = {call.name for call in vllm_pb2.DESCRIPTOR.services_by_name["VllmEngine"].methods}
    # The penalties go by their family name.
    params = {name for name in vllm_pb2.SamplingParams.DESCRIPTOR.fields_by_name if not name.endswith("_penalty")}
    assert calls | params <= named


# --- requests ------------------------------------------------------------------------------------------------------


def test_a_bare_request_asks_for_our_defaults() -> None:
    own = own_request(request())
    assert (own.request_id, list(own.token_ids)) == ("r", [11, 12, 13])
    # What is absent there reads 0; of ours only what 0 means as well may be set.
    assert {field.name for field, _ in own.sampling.ListFields()} <= {
        "top_k", "min_p", "presence_penalty", "frequency_penalty"
    }  # fmt: skip
    assert not own.HasField("n")
    assert not own.stop.HasField("max_tokens")
    assert not own.HasField("logprobs")


def test_every_parameter_arrives() -> None:
    own = own_request(
        request(
            temperature=0.0, top_p=0.5, top_k=7, min_p=0.25, frequency_penalty=-1.0, presence_penalty=1.5,
            repetition_penalty=1.25, max_tokens=9, min_tokens=2, stop_token_ids=[5, 6], ignore_eos=True, n=3,
            logprobs=0, prompt_logprobs=4, seed=-2, logit_bias={8: -3.5}, truncate_prompt_tokens=2,
        )
    )  # fmt: skip
    assert own.sampling == sampling_pb2.SamplingParams(
        temperature=0.0, top_p=0.5, top_k=7, min_p=0.25, frequency_penalty=-1.0, presence_penalty=1.5,
        repetition_penalty=1.25, seed=2**64 - 2, logit_bias={8: -3.5},
    )  # fmt: skip
    assert own.stop == sampling_pb2.StopConditions(max_tokens=9, min_tokens=2, stop_token_ids=[5, 6], ignore_eos=True)
    assert (own.n, own.logprobs, own.prompt_logprobs) == (3, 0, 4)
    assert list(own.token_ids) == [12, 13]


@pytest.mark.parametrize(
    ("params", "kind", "source"),
    [
        ({"json_schema": '{"type": "object"}'}, "json_schema", '{"type": "object"}'),
        ({"json_object": True}, "json_object", True),
        ({"regex": "a+"}, "regex", "a+"),
        ({"grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"choice": vllm_pb2.ChoiceConstraint(choices=["a", "b"])}, "lark", 'start: "a" | "b"'),
    ],
)
def test_constraints_are_grammars(params: dict[str, Any], kind: str, source: object) -> None:
    grammar = own_request(request(**params)).sampling.grammar
    assert (grammar.WhichOneof("kind"), getattr(grammar, kind)) == (kind, source)


def test_choices_are_taken_literally() -> None:
    grammar = LLMatcher.grammar_from_lark(one_of(['say "a.*"', "back\\slash", "two\nlines", "/é/ | x"]))
    assert not LLMatcher.validate_grammar(grammar)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (vllm_pb2.GenerateRequest(text="words"), "text"),
        (vllm_pb2.GenerateRequest(mm_inputs=vllm_pb2.MultimodalInputs()), "mm_inputs"),
        (vllm_pb2.GenerateRequest(extra_mm_inputs=[vllm_pb2.MultimodalInputs()]), "extra_mm_inputs"),
        (vllm_pb2.GenerateRequest(media_refs=vllm_pb2.MediaRefs()), "media_refs"),
        (vllm_pb2.GenerateRequest(kv_transfer_params=vllm_pb2.KvTransferParams()), "kv_transfer_params"),
        (vllm_pb2.GenerateRequest(kv_transfer_params_json="{}"), "kv_transfer_params_json"),
        (vllm_pb2.GenerateRequest(data_parallel_rank=1), "data_parallel_rank"),
        (request(structural_tag="{}"), "sampling_params.structural_tag"),
        (request(json_object=False), "sampling_params.json_object"),
        (request(logprobs=-1), "sampling_params.logprobs"),
        (request(prompt_logprobs=-1), "sampling_params.prompt_logprobs"),
        (request(truncate_prompt_tokens=0), "sampling_params.truncate_prompt_tokens"),
        (request(logit_bias={-1: 1.0}), "sampling_params.logit_bias"),
    ],
)
def test_what_has_no_words_here_is_refused_by_name(changed: Any, named: str) -> None:
    with pytest.raises(ServiceError) as refused:
        own_request(changed)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert set(refused.value.fields) == {named}


def test_rank_0_is_this_worker() -> None:
    own_request(vllm_pb2.GenerateRequest(data_parallel_rank=0))


# --- answers -------------------------------------------------------------------------------------------------------


def entry(token: int) -> sampling_pb2.TokenLogprobs:
    """A token of log-probability -token, behind token 1 of -1."""
    top = [sampling_pb2.TokenLogprob(token_id=1, logprob=-1), sampling_pb2.TokenLogprob(token_id=token, logprob=-token)]
    return sampling_pb2.TokenLogprobs(token_id=token, logprob=-token, top=top)


def step(*tokens: int, index: int = 0, end: int | None = None, **fields: Any) -> worker_pb2.GenerateResponse:
    response = worker_pb2.GenerateResponse(index=index, token_ids=tokens, logprobs=map(entry, tokens), **fields)
    if end is not None:
        response.finished.reason = end
        if end == sampling_pb2.FINISH_REASON_STOP:
            response.finished.stop_token_id = tokens[-1]
    return response


STARTED = {"started": worker_pb2.Started(cached_tokens=2, prompt_logprobs=[entry(12), entry(13)])}
LENGTH = sampling_pb2.FINISH_REASON_LENGTH


def test_a_stream_tells_each_token_once() -> None:
    answers = Answers(request(stream=True, logprobs=2, prompt_logprobs=1), [11, 12, 13])
    told = [one for response in (step(21, **STARTED), step(22, 23, end=LENGTH)) for one in answers.tell(response)]
    assert [one.WhichOneof("response") for one in told] == ["chunk", "chunk", "complete"]
    first, second, end = told[0].chunk, told[1].chunk, told[2].complete
    assert (list(first.token_ids), list(second.token_ids), list(end.output_ids)) == ([21], [22, 23], [])
    assert (first.completion_tokens, second.completion_tokens, end.completion_tokens) == (1, 2, 3)
    assert {one.prompt_tokens for one in (first, second, end)} == {3}
    assert {one.cached_tokens for one in (first, second, end)} == {2}
    assert list(second.output_logprobs.token_logprobs) == [-22, -23]
    assert [list(top.token_ids) for top in second.output_logprobs.top_logprobs] == [[1, 22], [1, 23]]
    # The first token of a prompt has a place and no value.
    assert [one.HasField("value") for one in first.input_logprobs.token_logprobs] == [False, True, True]
    assert [one.value for one in first.input_logprobs.token_logprobs] == [0, -12, -13]
    assert list(first.input_logprobs.token_ids) == [11, 12, 13]
    assert not second.HasField("input_logprobs")
    assert end.finish_reason == "length"
    assert answers.ended


def test_samples_told_whole_come_as_they_end() -> None:
    answers = Answers(request(n=2, logprobs=0), [11, 12, 13])
    responses = [step(21, **STARTED), step(31, index=1, end=LENGTH), step(22, end=sampling_pb2.FINISH_REASON_ABORTED)]
    told = [list(answers.tell(response)) for response in responses]
    assert [len(one) for one in told] == [0, 1, 1]
    second, first = told[1][0].complete, told[2][0].complete
    assert (second.index, list(second.output_ids), second.finish_reason) == (1, [31], "length")
    assert (first.index, list(first.output_ids), first.finish_reason) == (0, [21, 22], "abort")
    assert list(first.output_logprobs.token_logprobs) == [-21, -22]
    assert not first.output_logprobs.top_logprobs  # 0 asks for the chosen token's alone


@pytest.mark.parametrize(("stop_token_ids", "matched"), [([22], True), ([21], False), ([], False)])
def test_a_stop_token_is_named_when_the_caller_named_it(stop_token_ids: list[int], matched: bool) -> None:
    answers = Answers(request(stop_token_ids=stop_token_ids), [11])
    (end,) = answers.tell(step(22, end=sampling_pb2.FINISH_REASON_STOP))
    assert end.complete.finish_reason == "stop"
    assert (end.complete.WhichOneof("matched_stop") == "matched_token_id") is matched


# --- stop strings --------------------------------------------------------------------------------------------------


def letters() -> Tokenizer:
    """Token i is letter i of the alphabet; 26 is the two-byte é in halves of two byte tokens, 26 and 27."""
    vocab = {chr(ord("a") + place): place for place in range(26)} | {"<0xC3>": 26, "<0xA9>": 27}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def ids(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


@pytest.mark.parametrize(
    ("text", "unread", "strings", "min_tokens", "found"),
    [
        ("abcabc", 6, ["ca"], 0, (4, "ca")),
        ("abcabc", 6, ["x"], 0, None),
        ("abcabc", 6, ["bc", "a"], 0, (1, "a")),
        ("abcabc", 6, ["bc"], 3, (6, "bc")),  # the first one is forgiven, together with min_tokens
        ("abcabc", 1, ["abc"], 0, (6, "abc")),  # began in earlier steps
    ],
)
def test_the_first_token_that_completes_a_string_ends_it(
    text: str, unread: int, strings: list[str], min_tokens: int, found: tuple[int, str] | None
) -> None:
    assert StopStrings(letters(), strings, min_tokens).find(ids(text), unread) == found


def test_a_string_may_end_within_a_character_of_several_tokens() -> None:
    assert StopStrings(letters(), ["é"]).find([0, 26, 27, 1], 4) == (3, "é")


def test_what_follows_a_stop_string_is_not_told() -> None:
    answers = Answers(request(stream=True, logprobs=1), [11], StopStrings(letters(), ["ca"]))
    told = [
        one for response in (step(*ids("ab")), step(*ids("cab")), step(*ids("c"))) for one in answers.tell(response)
    ]
    assert [list(one.chunk.token_ids) for one in told[:2]] == [ids("ab"), ids("ca")]
    assert len(told[1].chunk.output_logprobs.token_logprobs) == 2
    end = told[2].complete
    assert (end.finish_reason, end.matched_stop_str, end.completion_tokens) == ("stop", "ca", 4)
    assert len(told) == 3
    assert answers.ended


async def test_stop_strings_need_a_vocabulary_and_an_end() -> None:
    reader, files = StopReader(), {"tokenizer.json": letters().to_str().encode()}
    assert await reader.read(vllm_pb2.SamplingParams(stop=[""]), {}) is None
    found = await reader.read(vllm_pb2.SamplingParams(stop=["a" * 1024], min_tokens=3), files)
    assert found is not None
    assert found.min_tokens == 3
    for params, some in (
        (vllm_pb2.SamplingParams(stop=["a"]), {}),
        (vllm_pb2.SamplingParams(stop=["a" * 1025]), files),
        (vllm_pb2.SamplingParams(stop=["a"]), {"tokenizer.json": b"{}"}),
    ):
        with pytest.raises(ServiceError) as refused:
            await StopReader().read(params, some)
        assert set(refused.value.fields) == {"sampling_params.stop"}


# --- the tokenizer's archive ---------------------------------------------------------------------------------------


def test_the_archive_holds_the_files_and_is_the_same_everywhere() -> None:
    files = {"b.json": b"2" * 10, "a.json": b"{}"}
    data = archive(files)
    assert data == archive(dict(reversed(files.items())))
    with zipfile.ZipFile(io.BytesIO(data)) as reader:
        assert {name: reader.read(name) for name in reader.namelist()} == files


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_only_the_last_piece_carries_the_digest(size: int) -> None:
    data = bytes(size)
    told = list(pieces(data))
    assert b"".join(one.data for one in told) == data
    assert [one.sha256 for one in told[:-1]] == [""] * (len(told) - 1)
    assert told[-1].sha256 == hashlib.sha256(data).hexdigest()
