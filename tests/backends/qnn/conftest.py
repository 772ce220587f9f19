"""Fixtures live in qnn_fixtures: tests import their types by a name that no other folder uses."""

from qnn_fixtures import built, compiler, wheel

__all__ = ["built", "compiler", "wheel"]
