"""Stubs of the gateway contract, version 1."""
