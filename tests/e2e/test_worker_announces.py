"""A real worker process that announces itself to a gateway, by a wildcard address and a DNS name."""

import json
import signal
from pathlib import Path

import pytest
from byte_model import byte_model
from grpc_health.v1 import health_pb2, health_pb2_grpc
from processes import ServiceProcess

from octavo.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from service.channels import open_channel

pytestmark = [pytest.mark.e2e, pytest.mark.model]

TOKEN = "operators-secret-token"


def test_a_worker_comes_by_announcing_itself_and_goes_when_it_drains(tmp_path: Path) -> None:
    """It has no address of its own in any setting, nor has the gateway one: it listens everywhere, on any port."""
    quiet = ("--metrics=",)
    with (
        ServiceProcess("kv_manager", "--listen=127.0.0.1:0", *quiet) as manager,
        ServiceProcess(
            "gateway",
            "--listen=127.0.0.1:0",
            "--http-listen=",
            "--workers=",
            *quiet,
            environ={"OCTAVO_GATEWAY_REGISTRATION_TOKEN": TOKEN},
        ) as gateway,
    ):
        manager.wait_ready()
        # Without a worker it is not ready, and tells where it listens by its log alone.
        (line,) = gateway.wait_log("waiting for a worker")
        address = str(json.loads(line)["grpc"])
        with ServiceProcess(
            "model_worker",
            f"--model={byte_model(tmp_path / 'tiny')}",
            "--listen=0.0.0.0:0",
            f"--manager={manager.address}",
            f"--gateways=dns:///localhost:{address.rpartition(':')[2]}",
            "--threads=1",
            "--num-blocks=64",
            "--dtype=float32",
            *quiet,
            environ={"OCTAVO_WORKER_GATEWAY_TOKEN": TOKEN},
        ) as worker:
            gateway.wait_ready()
            with open_channel(address) as channel:
                request = gateway_pb2.GenerateRequest(prompt="abc")
                request.options.max_tokens = 2
                request.options.ignore_eos = True
                stream = gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request, timeout=60)
                assert sum(len(piece.token_ids) for piece in stream) == 2
                watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
                assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
                worker.signal(signal.SIGTERM)
                assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
                watch.cancel()
                assert worker.stop() == 0
                gateway.wait_log(" left")
                # One that is only unwell would be listed, with no worker that is ready.
                listed = gateway_pb2_grpc.GatewayServiceStub(channel).ListModels(gateway_pb2.ListModelsRequest())
                assert not listed.models
