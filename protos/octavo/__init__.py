"""Client stubs of Octavo: octavo.gateway.v1, octavo.worker.v1 and octavo.kv.v1."""
