"""Stubs of the worker contract, version 1."""
