"""What each MIL op computes, after the public description of the opset of iOS 18. Floats are float32 here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from edgeforge.errors import UnsupportedError


class Arguments:
    """An op's arguments by name: values as tensors, settings as Python numbers."""

    def __init__(self, op: str, given: dict[str, tuple[Any, ...]]) -> None:
        self._op = op
        self._given = given

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def tensors(self, name: str) -> list[Tensor]:
        return [v if isinstance(v, Tensor) else torch.from_numpy(np.array(v)) for v in self._given[name]]

    def tensor(self, name: str) -> Tensor:
        return self.tensors(name)[0]

    def numbers(self, name: str, default: list[int] | None = None) -> list[int]:
        if name not in self._given and default is not None:
            return default
        return [int(i) for i in self.tensor(name).reshape(-1)]

    def number(self, name: str, default: float | None = None) -> float:
        if name not in self._given and default is not None:
            return default
        return float(self.tensor(name))

    def text(self, name: str, default: str) -> str:
        return str(self._given[name][0]) if name in self._given else default

    def only(self, name: str, *allowed: Any) -> None:
        """Refuses a setting that would be ignored."""
        value = self._given.get(name, (allowed[0],))[0]
        plain = value if isinstance(value, str) else torch.as_tensor(value).reshape(-1).tolist()
        if isinstance(plain, list) and len(set(plain)) == 1:
            plain = plain[0]
        if plain not in allowed:
            raise UnsupportedError(f"{self._op}: {name} = {plain} is not interpreted")


Rule = Callable[[Arguments], Tensor | tuple[Tensor, ...]]


def _two(function: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    return lambda a: function(a.tensor("x"), a.tensor("y"))


def _one(function: Callable[[Tensor], Tensor]) -> Rule:
    return lambda a: function(a.tensor("x"))


def _conv(a: Arguments) -> Tensor:
    for name, allowed in (("strides", (1,)), ("dilations", (1,)), ("groups", (1,)), ("pad_type", ("valid",))):
        a.only(name, *allowed)
    bias = a.tensor("bias") if "bias" in a else None
    return functional.conv2d(a.tensor("x"), a.tensor("weight"), bias)


def _matmul(a: Arguments) -> Tensor:
    x, y = (a.tensor(k).transpose(-1, -2) if a.number(f"transpose_{k}", 0) else a.tensor(k) for k in ("x", "y"))
    return x @ y


def _layer_norm(a: Arguments) -> Tensor:
    x = a.tensor("x")
    axes = [i % x.dim() for i in a.numbers("axes")]
    centred = x - x.mean(axes, keepdim=True)
    made = centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + a.number("epsilon", 1e-5))
    shape = [x.shape[i] if i in axes else 1 for i in range(x.dim())]
    if "gamma" in a:
        made = made * a.tensor("gamma").reshape(shape)
    return made + a.tensor("beta").reshape(shape) if "beta" in a else made


def _gelu(a: Arguments) -> Tensor:
    kinds = {"EXACT": "none", "TANH_APPROXIMATION": "tanh"}
    return functional.gelu(a.tensor("x"), approximate=kinds[a.text("mode", "EXACT")])


def _slice_by_size(a: Arguments) -> Tensor:
    x = a.tensor("x")
    for axis, (begin, size) in enumerate(zip(a.numbers("begin"), a.numbers("size"), strict=True)):
        x = x.narrow(axis, begin, x.shape[axis] - begin if size == -1 else size)
    return x


def _slice_update(a: Arguments) -> Tensor:
    """x with the elements from begin to end replaced; the masks and strides that would change these are refused."""
    for name, allowed in (("stride", 1), ("begin_mask", 0), ("end_mask", 0), ("squeeze_mask", 0)):
        a.only(name, allowed, bool(allowed))
    x = a.tensor("x").clone()
    x[tuple(map(slice, a.numbers("begin"), a.numbers("end")))] = a.tensor("update")
    return x


def _gather(a: Arguments) -> Tensor:
    a.only("batch_dims", 0)
    x, indices, axis = a.tensor("x"), a.tensor("indices").long(), int(a.number("axis", 0))
    rows = torch.index_select(x, axis, indices.reshape(-1))
    return rows.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1:])


def _concat(a: Arguments) -> Tensor:
    a.only("interleave", 0, False)
    return torch.cat(a.tensors("values"), int(a.number("axis")))


def _split(a: Arguments) -> tuple[Tensor, ...]:
    return torch.split(a.tensor("x"), a.numbers("split_sizes"), int(a.number("axis")))


def _quantize(a: Arguments) -> Tensor:
    """Rounded half to even, clipped to the codes that fit."""
    low, high = {"int8": (-128, 127), "uint8": (0, 255)}[a.text("output_dtype", "")]
    codes = torch.round(a.tensor("input") / a.tensor("scale")) + a.number("zero_point", 0)
    return codes.clamp(low, high)


RULES: dict[str, Rule] = {
    "add": _two(torch.add), "sub": _two(torch.sub), "mul": _two(torch.mul), "real_div": _two(torch.div),
    "silu": _one(functional.silu), "sigmoid": _one(torch.sigmoid), "tanh": _one(torch.tanh),
    "relu": _one(torch.relu), "erf": _one(torch.erf), "sqrt": _one(torch.sqrt), "abs": _one(torch.abs),
    "identity": _one(lambda x: x), "gelu": _gelu,
    "softmax": lambda a: torch.softmax(a.tensor("x"), int(a.number("axis", -1))),
    "reshape": lambda a: a.tensor("x").reshape(a.numbers("shape")),
    "transpose": lambda a: a.tensor("x").permute(a.numbers("perm")),
    "conv": _conv, "matmul": _matmul, "layer_norm": _layer_norm, "slice_by_size": _slice_by_size,
    "slice_update": _slice_update, "gather": _gather,
    "concat": _concat, "split": _split, "quantize": _quantize,
    "dequantize": lambda a: (a.tensor("input").float() - a.number("zero_point", 0)) * a.tensor("scale")}
