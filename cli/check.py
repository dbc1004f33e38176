"""``octavo check``: whether everything adds up in the pools of a KV manager."""

import json
import time
from dataclasses import asdict, dataclass

from cli.foreign import printable
from cli.options import (
    JsonOption,
    ManagerOption,
    PoolOption,
    TlsCaOption,
    TlsCertificateOption,
    TlsKeyOption,
    TlsOption,
)

DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check of a pool found at a step; equal states have equal digests."""

    pool: str
    step: int
    violations: tuple[str, ...]
    state_digest: str
    seconds: float

    @property
    def lines(self) -> list[str]:
        """For people."""
        if self.violations:
            return [
                f"pool {self.pool!r}, step {self.step}: BROKEN",
                *(f"  {violation}" for violation in self.violations),
            ]
        state = self.state_digest[:DIGEST_CHARACTERS]
        return [f"pool {self.pool!r}, step {self.step}: every invariant holds ({self.seconds:.3f} s, state {state})"]


def check(
    pool: PoolOption = "",
    as_json: JsonOption = False,
    address: ManagerOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = None,
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
) -> None:
    """Check the invariants of all pools.

    Or of one. The steps of all pools wait for it, about 5 s per million cached blocks.

    Exit status 1 when an invariant is broken.
    """
    from cli.calls import channel_to
    from cli.options import manager_address, tls_files
    from cli.pools import names_of
    from octavo.kv.v1 import inspect_pb2, kv_manager_pb2_grpc

    files = tls_files(wanted=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
    verdicts = []
    with channel_to(address := manager_address(address), "KV manager", tls=files) as channel:
        stub = kv_manager_pb2_grpc.KvManagerServiceStub(channel)
        for name in [pool] if pool else names_of(stub.ListPools(inspect_pb2.ListPoolsRequest())):
            begun = time.perf_counter()
            answer = stub.CheckIntegrity(inspect_pb2.CheckIntegrityRequest(pool=name))
            seconds = round(time.perf_counter() - begun, 3)
            verdict = Verdict(name, answer.header.step, tuple(answer.violations), answer.state_digest.hex(), seconds)
            verdicts.append(verdict)
            if not as_json:
                print(*map(printable, verdict.lines), sep="\n", flush=True)
    if as_json:
        print(json.dumps([asdict(verdict) for verdict in verdicts]))
    elif not verdicts:
        print(f"the KV manager at {address} has no pool: no model worker is attached")
    if any(verdict.violations for verdict in verdicts):
        raise SystemExit(1)
