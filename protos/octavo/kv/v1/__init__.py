"""Stubs of the kv contract, version 1."""
