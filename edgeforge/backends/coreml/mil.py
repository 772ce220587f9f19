"""Everything that we take from coremltools, and the only place that reaches behind its public face (9.0, pinned).

Programs are built op by op and serialised as they are: coremltools' own passes would only rewrite what was laid out
on purpose, and take ten times as long.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """coremltools tells eight times that this is no Mac, and that it has not seen this torch, which we do not use."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(level)


with _quiet():
    from coremltools import proto, target
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.backend.mil.load import load as _serialize
    from coremltools.converters.mil.mil import Function, Program, types

Var: TypeAlias = Any
"""a value of a MIL program; coremltools has no types"""

OPSETS = {9: target.iOS18, 10: target.iOS26}
"""by specification version. From 9 on, iOS 18 and macOS 15: several functions in one package, blockwise constants of 4
bits"""
OLDEST = 9
_COUNTED = re.compile(r"[a-z_]+_\d+(_[a-z_]+_\d+)?")
FLOAT16, INT32 = types.fp16, types.int32
INT8 = "int8"
"""as `quantize` spells it"""

__all__ = ["FLOAT16", "INT8", "INT32", "OLDEST", "Function", "Var", "function", "integers", "mb", "proto",
           "serialize", "share", "spell"]


def function(inputs: Mapping[str, tuple[Sequence[int], Any]], states: Mapping[str, Sequence[int]] | None = None,
             specification: int = OLDEST) -> Any:
    """A context in which ops are built into one function. inputs: shape and type by name. states: what the model keeps
    between calls, float16, by name.

    Ops without a name are counted from 0 in each, so that the same ops make the same function.
    """
    mb.name_count.clear()
    made = {name: mb.placeholder(tuple(shape), kind) for name, (shape, kind) in inputs.items()}
    made |= {name: mb.state_tensor_placeholder(tuple(shape), FLOAT16) for name, shape in (states or {}).items()}
    return Function(made, opset_version=OPSETS[specification])


def integers(bits: int, signed: bool) -> Any:
    """The numpy type in which coremltools carries codes of that many bits."""
    return types.nptype_from_builtin(types.string_to_builtin(f"{'' if signed else 'u'}int{bits}"))


def share(constant: Var, name: str) -> None:
    """Constants of one name are stored once, whichever functions read them."""
    constant.op.weight_id = name


def spell(name: str, taken: set[str]) -> str:
    """name as MIL's grammar takes it ([A-Za-z_][A-Za-z0-9_]*), and as nobody in taken is called, nor an op that the
    builder names itself (`concat_3`); it is added there."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    plain = plain if not plain[:1].isdigit() else f"_{plain}"
    found, k = plain, 2
    while found in taken or _COUNTED.fullmatch(found):
        found, k = f"{plain}_v{k}", k + 1
    taken.add(found)
    return found


def serialize(functions: Mapping[str, Any], default: str, weights: Path, specification: int = OLDEST) -> Any:
    """The functions as a Core ML model (Model_pb2.Model); constants go into weights/weight.bin."""
    program = Program()
    for name, made in functions.items():
        program.add_function(name, made)
    program.default_function_name = default
    program.export_as_multifunction = True
    with _quiet():
        return _serialize(program, str(weights), specification_version=OPSETS[specification].value)
