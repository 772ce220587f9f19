"""GELU as exporters before opset 20 write it -> one Gelu node, which HTP runs; Erf it does not.

x * 0.5 * (1 + erf(x / sqrt 2)), the factors in any order, or with
tanh(sqrt(2 / pi) * (x + 0.044715 x^3)) in erf's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from edgeforge.graph import edit


class FuseGelu(ir.passes.InPlacePass):
    """Pre: constants are initializers. Opset 20 or later."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return edit.rewrite(model, ("Mul",), _fuse)


def _fuse(product: ir.Node) -> bool:
    factors = list(_factors(product))
    numbers = [n for n in map(edit.scalar, factors) if n is not None]
    others = [f for f in factors if edit.scalar(f) is None]
    if len(others) != 2 or not math.isclose(math.prod(numbers), 0.5, rel_tol=1e-3):
        return False
    for x, gate in (others, reversed(others)):
        kind = _gate(gate, x)
        if kind is not None:
            out = product.outputs[0]
            fused = edit.node_before(product, "Gelu", [x], f"{out.name}/gelu", edit.known_dims(out),
                                     [ir.AttrString("approximate", kind)])
            edit.take_over(out, fused)
            return True
    return False


def _factors(product: ir.Node) -> Iterator[ir.Value]:
    """What is multiplied, through products that nobody else reads."""
    for value in product.inputs:
        inner = edit.producer(value, "Mul")
        if value is not None and inner is not None and edit.only_user(value) is product:
            yield from _factors(inner)
        elif value is not None:
            yield value


def _gate(value: ir.Value, x: ir.Value) -> str | None:
    """"none" for 1 + erf(x / sqrt 2), "tanh" for its approximation."""
    inner = _plus(value, 1.0)
    erf, tanh = edit.producer(inner, "Erf"), edit.producer(inner, "Tanh")
    if erf is not None and _times(erf.inputs[0], math.sqrt(0.5)) is x:
        return "none"
    cubic = _times(tanh.inputs[0], math.sqrt(2 / math.pi)) if tanh is not None else None
    return "tanh" if cubic is not None and _cubic(cubic, x) else None


def _plus(value: ir.Value | None, number: float) -> ir.Value | None:
    node = edit.producer(value, "Add")
    if node is not None:
        for term, constant in (node.inputs, reversed(node.inputs)):
            if edit.scalar(constant) == number:
                return term
    return None


def _times(value: ir.Value | None, factor: float) -> ir.Value | None:
    """y when value is y * factor, or y / (1 / factor)."""
    node = edit.producer(value, "Mul", "Div")
    if node is None:
        return None
    pairs = [tuple(node.inputs)] if node.op_type == "Div" else [tuple(node.inputs), tuple(reversed(node.inputs))]
    for y, constant in pairs:
        number = edit.scalar(constant)
        if number and math.isclose(1 / number if node.op_type == "Div" else number, factor, rel_tol=1e-3):
            return y
    return None


def _cubic(value: ir.Value, x: ir.Value) -> bool:
    """value = x + 0.044715 x^3?"""
    node = edit.producer(value, "Add")
    if node is None:
        return False
    for plain, bent in (node.inputs, reversed(node.inputs)):
        power = edit.producer(_times(bent, 0.044715), "Pow")
        if plain is x and power is not None and power.inputs[0] is x and edit.scalar(power.inputs[1]) == 3:
            return True
    return False
