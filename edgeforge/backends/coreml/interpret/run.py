"""One function of a package, executed in order; each value checked against the type that the package declares."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeforge.backends.coreml.interpret import constants, program
from edgeforge.backends.coreml.interpret.ops import RULES, Arguments
from edgeforge.backends.coreml.interpret.program import Constant, Function, Name, Op, Stored, Typed
from edgeforge.errors import EdgeForgeError, UnsupportedError

Rounding = Literal["float32", "float16"]
"""what an op's float16 outputs are here: as computed, or rounded; sums inside an op are float32 in both. Weights are
float16 in both, because that is what they expand to"""
Arrays = dict[str, npt.NDArray[Any]]


@dataclass
class Interpreter:
    """The functions of a package. What is stored in weight.bin is expanded once for all functions, and kept."""

    functions: dict[str, Function]
    rounding: Rounding
    states: dict[str, Tensor] = field(default_factory=dict)
    """by name; those of one package are one set, whichever function writes them"""
    _constants: dict[Hashable, tuple[Tensor | str, ...]] = field(default_factory=dict)

    @classmethod
    def open(cls, package: Path, rounding: Rounding = "float16") -> Interpreter:
        """Reads a .mlpackage; raises like program.load."""
        return cls(program.load(package), rounding)

    @torch.inference_mode()
    def run(self, function: str, inputs: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        """The outputs of one call, floats as float32. States begin with zeros and stay from call to call.

        Raises:
            EdgeForgeError: no such function; an input is missing or has another shape.
            UnsupportedError: an op that is not interpreted.
        """
        called = self.functions.get(function)
        if called is None:
            raise EdgeForgeError(f"no function {function!r}", f"it has {', '.join(self.functions)}")
        values: dict[str, Tensor | str] = {i.name: self._input(i, inputs) for i in called.inputs}
        for kept in called.states:
            self.states.setdefault(kept.name, torch.zeros(kept.shape))
            values[kept.name] = kept.name
        last = _last_uses(called)
        for index, op in enumerate(called.ops):
            values |= self._op(function, op, values)
            for name in last.get(index, ()):
                del values[name]
        return {name: np.asarray(values[name]) for name in called.outputs}

    def keep(self, states: Mapping[str, npt.NDArray[Any]]) -> None:
        """From now on the states are these, by name."""
        self.states |= {name: torch.from_numpy(array.astype(np.float32)) for name, array in states.items()}

    def _input(self, declared: Typed, given: Mapping[str, npt.NDArray[Any]]) -> Tensor:
        array = given.get(declared.name)
        if array is None or array.shape != declared.shape:
            raise EdgeForgeError(f"input {declared.name} is {'missing' if array is None else array.shape}, and the "
                                 f"function takes {declared.shape}")
        whole = declared.type.startswith("INT")
        return self._rounded(torch.from_numpy(array.astype(np.int32 if whole else np.float32)), declared)

    def _op(self, function: str, op: Op, values: dict[str, Tensor | str]) -> dict[str, Tensor | str]:
        if op.type == "const" or op.type.startswith("constexpr_"):
            return self._constant(function, op, values)
        if op.type in ("read_state", "write_state"):
            return self._state(op, values)
        rule = RULES.get(op.type)
        if rule is None:
            raise UnsupportedError(f"{op.name}: {op.type} is not interpreted")
        given = {key: tuple(values[v.text] if isinstance(v, Name) else _tensor(v) for v in argument)
                 for key, argument in op.arguments.items()}
        made = rule(Arguments(f"{op.name} ({op.type})", given))
        outputs = (made,) if isinstance(made, Tensor) else made
        return {o.name: self._checked(op, t, o) for o, t in zip(op.outputs, outputs, strict=True)}

    def _state(self, op: Op, values: Mapping[str, Tensor | str]) -> dict[str, Tensor | str]:
        """A copy when read: what is written later must not show in what was read before."""
        named = op.arguments["input"][0]
        held = str(values[named.text]) if isinstance(named, Name) else ""
        if held not in self.states:
            raise EdgeForgeError(f"{op.name}: {op.type} of {held!r}, which is no state of the function")
        if op.type == "write_state":
            data = op.arguments["data"][0]
            made = values[data.text] if isinstance(data, Name) else _tensor(data)
            if not isinstance(made, Tensor) or made.shape != self.states[held].shape:
                raise EdgeForgeError(f"{op.name}: what is written is not as large as the state {held}")
            self.states[held] = self._half(made)
            return {}
        return {op.outputs[0].name: self._checked(op, self.states[held].clone(), op.outputs[0])}

    def _constant(self, function: str, op: Op, values: Mapping[str, Tensor | str]) -> dict[str, Tensor | str]:
        key = _key(function, op)
        if key not in self._constants:
            given = {k: values[v[0].text] if isinstance(v[0], Name) else v[0] for k, v in op.arguments.items()}
            made = (given["val"],) if op.type == "const" else constants.expand(
                op.type, {k: np.asarray(v.read() if isinstance(v, Stored) else v) for k, v in given.items()})
            self._constants[key] = tuple(map(_tensor, made))
            for value, output in zip(self._constants[key], op.outputs, strict=True):
                _check_shape(op, value, output)
        return {o.name: v for o, v in zip(op.outputs, self._constants[key], strict=True)}

    def _checked(self, op: Op, made: Tensor, declared: Typed) -> Tensor:
        _check_shape(op, made, declared)
        return self._rounded(made, declared)

    def _rounded(self, value: Tensor, declared: Typed) -> Tensor:
        return self._half(value) if declared.type == "FLOAT16" else value

    def _half(self, value: Tensor) -> Tensor:
        return value.half().float() if self.rounding == "float16" else value


def _check_shape(op: Op, made: Tensor | str, declared: Typed) -> None:
    if isinstance(made, Tensor) and tuple(made.shape) != declared.shape:
        raise EdgeForgeError(f"{op.name}: {op.type} makes {tuple(made.shape)}, and the package says "
                             f"{declared.shape}", "the package is wrong, or the interpreter: please report it")


def _key(function: str, op: Op) -> Hashable:
    """The same for constants of the same bytes and shape, whichever function they stand in."""
    offsets = {k: v[0].offset for k, v in op.arguments.items() if isinstance(v[0], Stored)}
    if len(offsets) != len(op.arguments):
        return function, op.outputs[0].name
    return op.type, tuple(o.shape for o in op.outputs), *sorted(offsets.items())


def _tensor(value: Constant | Tensor) -> Tensor | str:
    if isinstance(value, str | Tensor):
        return value
    value = value.read() if isinstance(value, Stored) else value
    return torch.from_numpy(np.array(value, np.float32 if value.dtype.kind == "f" else value.dtype))


def _last_uses(function: Function) -> dict[int, list[str]]:
    """The values that nobody reads after each op."""
    last: dict[str, int] = {}
    for index, op in enumerate(function.ops):
        for name in [o.name for o in op.outputs] + [v.text for a in op.arguments.values() for v in a
                                                   if isinstance(v, Name)]:
            last[name] = index
    kept, found = {*function.outputs}, dict[int, list[str]]()
    for name, index in last.items():
        if name not in kept:
            found.setdefault(index, []).append(name)
    return found
