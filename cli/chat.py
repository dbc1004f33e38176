"""``octavo chat``: a conversation in the terminal."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from cli.failures import refusal
from cli.foreign import printable
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

HELP = "/reset forgets the conversation, /system TEXT sets the system message, /exit leaves; Ctrl-C stops an answer"


def chat(
    system: Annotated[str, typer.Option(help="system message [default: the model's own]")] = "",
    max_tokens: Annotated[int | None, typer.Option(max=INT32_MAX, help="most tokens of an answer")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy [default: 1]")] = None,
    top_p: Annotated[float | None, typer.Option(help="keep this much probability, in (0, 1]")] = None,
    seed: Annotated[int | None, typer.Option(max=INT64_MAX, help="makes sampling repeatable")] = None,
    model: Annotated[str, typer.Option(help="a served model's name [default: the only one]")] = "",
    address: AddressOption = "",
    api_key: ApiKeyOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """Talk with a model. Answers stream; the conversation so far stays in the prefix cache."""
    from cli.calls import explain, gateway_channel
    from cli.conversation import Conversation
    from cli.options import accept_any_bytes, gateway_address, tls_files
    from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc

    options = gateway_pb2.GenerateOptions(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    accept_any_bytes()
    with gateway_channel(address := gateway_address(address), files, api_key) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        models = stub.ListModels(gateway_pb2.ListModelsRequest()).models
        served = model or ", ".join(each.id for each in models) or "no model"
        print(f"{printable(served)} at {address}\n{HELP}", file=sys.stderr)
        conversation = Conversation(stub, options, model, system, write, write_reasoning)

        def turn(line: str) -> str:
            import grpc

            try:
                return conversation.turn(line)
            except grpc.RpcError as error:
                return f"octavo: {explain(error, address, 'gateway')}"

        talk(turn, conversation.reset, conversation.set_system)


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def write_reasoning(text: str) -> None:
    """Beside the answer, which may be piped on."""
    sys.stderr.write(text)
    sys.stderr.flush()


def talk(turn: Callable[[str], str], reset: Callable[[], None], set_system: Callable[[str], None]) -> None:
    """Read lines until /exit or the end of input. Each line is a turn or a command."""
    if sys.stdin.isatty():
        import readline  # noqa: F401  gives input() its line editing and history
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            write("\n")
            return
        command, _, rest = line.partition(" ")
        try:
            match command:
                case "":
                    continue
                case "/exit" | "/quit":
                    return
                case "/reset":
                    reset()
                    print("forgotten", file=sys.stderr)
                case "/system":
                    set_system(rest.strip())
                    print("set; the conversation starts anew", file=sys.stderr)
                case _ if command.startswith("/"):
                    print(f"no command {command}: {HELP}", file=sys.stderr)
                case _:
                    print(turn(line), file=sys.stderr)
        except UnicodeEncodeError as error:
            print(f"octavo: {refusal(error)}", file=sys.stderr)
