"""A gate that lets everybody in, for tests of what is behind it."""

from prometheus_client import CollectorRegistry

from gateway.tenancy.directory import Directory
from gateway.tenancy.gate import Gate, QueueBounds
from gateway.tenancy.metrics import TenantMetrics


def open_gate(registry: CollectorRegistry | None = None) -> Gate:
    """No tenants, any number of places."""
    metrics = TenantMetrics(registry or CollectorRegistry())
    return Gate(Directory(), lambda model: lambda: None, QueueBounds(30.0, 1024), metrics)
