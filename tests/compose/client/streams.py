"""Streams as a client sees them: ``python streams.py GATEWAY TOKENS PROMPT...``, one stream per prompt, all at once.

A JSON object per line on stdout: ``{"stream", "tokens", "text"}`` as it comes, ``{"stream", "code", "details",
"migrations", "paused"}`` at a stream's end.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from service.channels import open_channel

PATIENCE_SECONDS = 120.0


def tell(**line: object) -> None:
    """One write per line: threads share stdout."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def listen(gateway: gateway_pb2_grpc.GatewayServiceStub, stream: int, prompt: str, tokens: int) -> None:
    """Greedy, and of exactly ``tokens`` tokens."""
    options = gateway_pb2.GenerateOptions(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    end = gateway_pb2.Usage()
    try:
        for response in gateway.Generate(
            gateway_pb2.GenerateRequest(prompt=prompt, options=options), timeout=PATIENCE_SECONDS
        ):
            tell(stream=stream, tokens=list(response.token_ids), text=response.text)
            if response.HasField("usage"):
                end = response.usage
    except grpc.RpcError as error:
        tell(stream=stream, code=error.code().name, details=error.details(), migrations=0, paused=0.0)
    else:
        tell(stream=stream, code="OK", details="", migrations=end.migrations, paused=end.paused_seconds)


def main() -> None:
    address, tokens, *prompts = sys.argv[1:]
    with open_channel(address) as channel, ThreadPoolExecutor(len(prompts)) as threads:
        gateway = gateway_pb2_grpc.GatewayServiceStub(channel)
        for stream, prompt in enumerate(prompts):
            threads.submit(listen, gateway, stream, prompt, int(tokens))


if __name__ == "__main__":
    main()
