"""``octavo generate``: continue a prompt, streaming."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.failures import CliError
from cli.options import INT32_MAX, INT64_MAX, AddressOption

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
    seed: Annotated[int | None, typer.Option(max=INT64_MAX, help="makes sampling repeatable")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="text that ends the answer; may be given again")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="go on past the end-of-sequence token")] = False,
    model: Annotated[str, typer.Option(help="a served model's name [default: the only one]")] = "",
    address: AddressOption = "",
    timeout: Annotated[float | None, typer.Option(help="seconds after which the request is given up")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object at the end instead of text")] = False,
) -> None:
    """Continue a prompt. Text goes to stdout as it comes, usage to stderr; Ctrl-C cancels the request."""
    from cli.calls import answers_of, channel_to
    from cli.options import accept_any_bytes, gateway_address
    from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

    options = gateway_pb2.GenerateOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=stop or [],
        ignore_eos=ignore_eos,
    )
    accept_any_bytes()
    text = sys.stdin.read() if prompt == "-" else prompt
    request = gateway_pb2.GenerateRequest(model=model, prompt=text, options=options)
    address = gateway_address(address)
    parts: list[str] = []
    token_ids: list[int] = []
    last: gateway_pb2.GenerateResponse | None = None
    with channel_to(address, "gateway") as channel:
        call = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request, timeout=timeout)
        try:
            for last in answers_of(call):
                parts.append(last.text)
                token_ids.extend(last.token_ids)
                if not as_json:
                    sys.stdout.write(last.text)
                    sys.stdout.flush()
        finally:
            call.cancel()  # no effect on a call that has ended
    if last is None:
        raise CliError(f"the gateway at {address} ended the stream without an answer")
    if as_json:
        print(json.dumps(_summary("".join(parts), token_ids, last), ensure_ascii=False))
    else:
        print(flush=True)
        print(usage_line(last.usage, last.finish_reason), file=sys.stderr)


def usage_line(usage: "gateway_pb2.Usage", finish_reason: "gateway_pb2.FinishReason") -> str:
    """What an answer took, in one line."""
    decode_seconds = usage.total_seconds - usage.first_token_seconds
    rate = f", {(usage.completion_tokens - 1) / decode_seconds:.1f} tokens/s" if decode_seconds > 0 else ""
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


def _summary(text: str, token_ids: list[int], last: "gateway_pb2.GenerateResponse") -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    usage = MessageToDict(last.usage, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return {
        "request_id": last.header.request_id,
        "model": last.header.model,
        "text": text,
        "token_ids": token_ids,
        "finish_reason": finish_name(last.finish_reason),
        "stop_reason": last.stop_reason,
        "usage": usage,
    }
