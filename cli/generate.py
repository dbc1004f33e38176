"""``octavo generate``: continue a prompt, streaming."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.failures import CliError
from cli.options import (
    INT32_MAX,
    INT64_MAX,
    AddressOption,
    ApiKeyOption,
    TlsCaOption,
    TlsCertificateOption,
    TlsKeyOption,
    TlsOption,
)

if TYPE_CHECKING:
    from octavo.gateway.v1 import gateway_pb2


def generate(
    prompt: Annotated[str, typer.Argument(help="text to continue; - reads it from stdin")],
    max_tokens: Annotated[
        int | None, typer.Option(max=INT32_MAX, help="most tokens generated [default: the gateway's]")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy [default: 1]")] = None,
    top_p: Annotated[float | None, typer.Option(help="keep this much probability, in (0, 1]")] = None,
    top_k: Annotated[int | None, typer.Option(max=INT32_MAX, help="keep the k most likely tokens; 0 keeps all")] = None,
    min_p: Annotated[float | None, typer.Option(help="drop tokens below this share of the most likely one")] = None,
    typical_p: Annotated[float | None, typer.Option(help="keep locally typical tokens, in (0, 1]")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="weaken tokens already seen, above 0")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="weaken tokens already generated, -2 to 2")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="the same by how often they came, -2 to 2")] = None,
    logit_bias: Annotated[
        list[str] | None, typer.Option(metavar="ID=BIAS", help="added to a token's logit; may be given again")
    ] = None,
    bad_word: Annotated[list[str] | None, typer.Option(help="text never generated; may be given again")] = None,
    min_tokens: Annotated[int | None, typer.Option(max=INT32_MAX, help="generated before a stop token")] = None,
    logprobs: Annotated[
        int | None, typer.Option(max=INT32_MAX, help="with --json: log-probabilities of this many likely tokens")
    ] = None,
    prompt_logprobs: Annotated[int | None, typer.Option(max=INT32_MAX, help="the same for the prompt")] = None,
    seed: Annotated[int | None, typer.Option(max=INT64_MAX, help="makes sampling repeatable")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="text that ends the answer; may be given again")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="go on past the end-of-sequence token")] = False,
    n: Annotated[
        int | None, typer.Option("--n", max=INT32_MAX, help="answers; several are printed whole, in order [default: 1]")
    ] = None,
    best_of: Annotated[
        int | None, typer.Option(max=INT32_MAX, help="answers generated, of which the n likeliest are kept")
    ] = None,
    beam_width: Annotated[int | None, typer.Option(max=INT32_MAX, help="beam search of this width")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="exponent of the length in a beam's score")] = None,
    model: Annotated[str, typer.Option(help="a served model's name [default: the only one]")] = "",
    address: AddressOption = "",
    api_key: ApiKeyOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
    timeout: Annotated[float | None, typer.Option(help="seconds after which the request is given up")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print a JSON object per answer at the end instead of text")
    ] = False,
) -> None:
    """Continue a prompt. Text goes to stdout as it comes, usage to stderr; Ctrl-C cancels the request."""
    if not as_json and (logprobs is not None or prompt_logprobs is not None):
        raise typer.BadParameter("log-probabilities are printed with --json only", param_hint="--logprobs")
    from cli.calls import answers_of, gateway_channel
    from cli.options import accept_any_bytes, gateway_address, tls_files
    from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

    options = gateway_pb2.GenerateOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        typical_p=typical_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=dict(map(_bias, logit_bias or [])),
        bad_words=bad_word or [],
        min_tokens=min_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        seed=seed,
        stop=stop or [],
        ignore_eos=ignore_eos,
        n=n,
        best_of=best_of,
        beam_width=beam_width,
        length_penalty=length_penalty,
    )
    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    accept_any_bytes()
    text = sys.stdin.read() if prompt == "-" else prompt
    request = gateway_pb2.GenerateRequest(model=model, prompt=text, options=options)
    address = gateway_address(address)
    several = n is not None and n > 1
    answers: list[gateway_pb2.GenerateResponse] = []
    with gateway_channel(address, files, api_key) as channel:
        call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request, timeout=timeout)
        try:
            for answer in answers_of(call):
                answers.append(answer)
                if not as_json and not several:
                    sys.stdout.write(answer.text)
                    sys.stdout.flush()
        finally:
            call.cancel()  # no effect on a call that has ended
    if not answers:
        raise CliError(f"the gateway at {address} ended the stream without an answer")
    for index in sorted({answer.index for answer in answers}):
        own = [answer for answer in answers if answer.index == index]
        if as_json:
            print(json.dumps(_summary(own), ensure_ascii=False))
        else:
            print("".join(answer.text for answer in own) if several else "", flush=True)
            print(usage_line(own[-1].usage, own[-1].finish_reason), file=sys.stderr)


def _bias(given: str) -> tuple[int, float]:
    """``ID=BIAS``."""
    try:
        token, bias = given.split("=")
        return int(token), float(bias)
    except ValueError:
        raise typer.BadParameter(f"{given} is not ID=BIAS, such as 11=-5", param_hint="--logit-bias") from None


def usage_line(usage: "gateway_pb2.Usage", finish_reason: "gateway_pb2.FinishReason") -> str:
    """What an answer took, in one line."""
    decode_seconds, decoded = usage.total_seconds - usage.first_token_seconds, usage.completion_tokens - 1
    rate = f", {decoded / decode_seconds:.1f} tokens/s" if decode_seconds > 0 and decoded > 0 else ""
    return (
        f"[{usage.prompt_tokens} prompt tokens, {usage.cached_tokens} of them cached; "
        f"{usage.completion_tokens} generated in {usage.total_seconds:.2f} s, "
        f"the first after {usage.first_token_seconds:.2f} s{rate}; "
        f"{finish_name(finish_reason)}]"
    )


def finish_name(finish_reason: "gateway_pb2.FinishReason") -> str:
    """``FINISH_REASON_LENGTH`` as ``length``."""
    from octavo.gateway.v1 import gateway_pb2

    return gateway_pb2.FinishReason.Name(finish_reason).removeprefix("FINISH_REASON_").lower()


def _summary(answers: "Sequence[gateway_pb2.GenerateResponse]") -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    last = answers[-1]
    usage = MessageToDict(last.usage, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    summary = {
        "request_id": last.header.request_id,
        "model": last.header.model,
        "index": last.index,
        "text": "".join(answer.text for answer in answers),
        "token_ids": [token for answer in answers for token in answer.token_ids],
        "finish_reason": finish_name(last.finish_reason),
        "stop_reason": last.stop_reason,
        "usage": usage,
    }
    for name in ("prompt_logprobs", "logprobs"):
        entries = [_position(entry) for answer in answers for entry in getattr(answer, name)]
        if entries:
            summary[name] = entries
    return summary


def _position(entry: "gateway_pb2.TokenLogprobs") -> dict[str, Any]:
    chosen, *top = (
        {"token_id": one.token_id, "text": one.text, "logprob": one.logprob} for one in (entry.token, *entry.top)
    )
    return {**chosen, "top": top}
