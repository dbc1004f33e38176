"""The calls that every service answers beside its own: grpc.health.v1 and server reflection."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from wire_errors import refusal


def check_health(channel: grpc.Channel, service: str) -> None:
    """SERVING for the server and for its service, NOT_FOUND for any other."""
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", service):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    refusal(lambda: health.Check(health_pb2.HealthCheckRequest(service="octavo.none"), timeout=60), "NOT_FOUND")


def check_not_serving(channel: grpc.Channel, service: str) -> None:
    """NOT_SERVING already: whoever is told to take nothing new has said so by its answer."""
    health = health_pb2_grpc.HealthStub(channel)
    answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


def wait_not_serving(channel: grpc.Channel, service: str) -> None:
    """Wait until health says that the service takes nothing new."""
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service), timeout=60)
    assert any(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING for answer in watch)
    watch.cancel()


def check_reflection(channel: grpc.Channel, service: str) -> None:
    """The service is listed, and can be called by who knows no more than that."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=service),
    ]
    listed, described = stub.ServerReflectionInfo(iter(asked), timeout=60)
    assert service in {one.name for one in listed.list_services_response.service}
    assert described.file_descriptor_response.file_descriptor_proto


def check_unknown_calls(channel: grpc.Channel, service: str) -> None:
    """A call that is not there is UNIMPLEMENTED; bytes that are no message are the caller's mistake, and no defect."""
    refusal(lambda: channel.unary_unary(f"/{service}/NoSuchCall")(b"", timeout=60), "UNIMPLEMENTED")
    half_a_tag = b"\x12\x01\xff"
    refusal(lambda: list(channel.unary_stream(f"/{service}/Generate")(half_a_tag, timeout=60)), "INVALID_ARGUMENT")
