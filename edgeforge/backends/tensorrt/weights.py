"""Weights in the forms that TensorRT multiplies without unpacking them first.

Measured on TensorRT-RTX 1.7.1 by its layer dump: int4 in symmetric blocks of 16 to 128 inputs, int8 and E4M3 with one
scale an output channel go into the product as they are; int4 with one scale a channel, blocks of 256 and blocks of int8
are unpacked to float16 by a kernel of their own, and any zero point but 0 is a parse error. So codes stay what they
are, and their scales are written another way where that is the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeforge import float8
from edgeforge.encodings import Encoding, Floats, Table, reals
from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit

BLOCKS = (128, 64, 32, 16)
_LOSS = 1 / 64
"""most that float16 may change a scale: below 2^-24 / _LOSS its steps are too coarse"""
_WHOLE_BITS = 16
_CHANNEL, _INPUTS = 0, 1
"""axes of a weight [N, K]"""

Codes = npt.NDArray[Any]


@dataclass(frozen=True)
class Packed:
    """A weight [N, K] as TensorRT takes it. codes: int4, int8 or E4M3. scale: [N, K / block], or [N] without block."""

    codes: Codes
    scale: npt.NDArray[np.float16]
    block: int | None

    @property
    def attributes(self) -> list[ir.Attr]:
        """Of the DequantizeLinear that unpacks it."""
        if self.block is None:
            return [ir.AttrInt64("axis", _CHANNEL)]
        return [ir.AttrInt64("axis", _INPUTS), ir.AttrInt64("block_size", self.block)]


@dataclass(frozen=True)
class Product:
    """MatMul(x, Transpose(weight))."""

    node: ir.Node
    turn: ir.Node
    weight: ir.Value

    @property
    def x(self) -> ir.Value:
        value = self.node.inputs[0]
        if value is None:
            raise ValueError(f"{self.node.name} lacks its input")
        return value


def products(graph: ir.Graph) -> Iterator[Product]:
    """Every product with a constant [N, K]."""
    for node in list(graph):
        turn = edit.producer(node.inputs[1], "Transpose") if node.op_type == "MatMul" else None
        weight = turn.inputs[0] if turn is not None else None
        if turn is not None and weight is not None and weight.is_initializer():
            yield Product(node, turn, weight)


def pack(name: str, array: npt.NDArray[Any], encoding: Encoding) -> Packed | None:
    """A weight [N, K] on its grid; None when 16 bits are asked for: it stays float16.

    Raises:
        UnsupportedError: a grid that TensorRT has no product for, or a scale that float16 cannot hold (by name).
    """
    if encoding.bits == _WHOLE_BITS:
        return None
    if not encoding.symmetric:
        raise UnsupportedError(f"{name}: its grid has a zero point, which TensorRT refuses to parse",
                               "export this weight symmetric")
    if encoding.e4m3:
        floats = float8.stored(encoding.quantize(reals(array)))
        return Packed(floats, _half(name, _by_channel(name, encoding, len(array)), floats.astype(np.float32)), None)
    middle = 0 if encoding.signed else 1 << (encoding.bits - 1)
    codes = encoding.quantize(reals(array)) - middle
    if encoding.bits == 8:
        return Packed(codes.astype(np.int8), _half(name, _by_channel(name, encoding, len(array)), codes), None)
    if encoding.bits != 4:
        raise UnsupportedError(f"{name}: weights of {encoding.bits} bits", "TensorRT multiplies by 4, 8 or 16 bits")
    steps, block = _by_block(name, encoding, *array.shape)
    if block is None:  # one scale a channel, and no block divides it: the same codes as int8
        return Packed(codes.astype(np.int8), _half(name, steps, codes), None)
    return Packed(codes.astype(ml_dtypes.int4), _half(name, steps, codes.reshape(*steps.shape, block)), block)


def pack_all(graph: ir.Graph, table: Table, alone: bool = True) -> dict[str, Packed]:
    """Every product's weight that has a grid, by name; see pack.

    alone: may 8-bit weights meet float16? Where not, those that do become float16 in place, with their grid's values.

    Raises:
        UnsupportedError: something else reads such a weight too; the quantize stage gives an embedding table that is
            the head's weight two values (untie.py).
    """
    found: dict[str, Packed] = {}
    for product in products(graph):
        name, array = str(product.weight.name), edit.constant(product.weight)
        if name in table and array is not None:
            if len(list(product.weight.uses())) > 1:
                raise UnsupportedError(f"{name}: more than one node reads its codes",
                                       "give each its own weight")
            packed = pack(name, array, table[name])
            reads = edit.producer(product.x, "DequantizeLinear") is not None
            if packed is not None and packed.block is None and not reads and not alone:
                on_grid = table[name].dequantize(table[name].quantize(reals(array)))
                product.weight.const_value = ir.tensor(on_grid.astype(np.float32), name=name)
            elif packed is not None:
                found[name] = packed
    return found


def write(graph: ir.Graph, packed: Mapping[str, Packed]) -> None:
    """In place: these weights become codes behind a DequantizeLinear, for the product that reads them.

    The node still makes float32 (half.py comes after).
    """
    for name, product in {str(p.weight.name): p for p in products(graph)}.items():
        if name in packed:
            _replace(graph, product, name, packed[name])


def _replace(graph: ir.Graph, product: Product, name: str, packed: Packed) -> None:
    graph.initializers.pop(name)
    codes = edit.initializer(graph, name, packed.codes)
    scale = edit.initializer(graph, f"{name}/scale", packed.scale)
    real = edit.node_before(product.turn, "DequantizeLinear", [codes, scale], f"{name}/dq", list(packed.codes.shape),
                            packed.attributes)
    real.type = ir.TensorType(ir.DataType.FLOAT)
    product.turn.replace_input_with(0, real)


def _by_channel(name: str, encoding: Encoding, channels: int) -> Floats:
    if encoding.block is not None or encoding.axis not in (None, _CHANNEL):
        raise UnsupportedError(f"{name}: 8-bit codes with a scale a block or an input, which TensorRT unpacks to "
                               "float16 before the product", "take one scale an output channel")
    steps: Floats = np.broadcast_to(encoding.steps(), (channels,))
    return steps


def _by_block(name: str, encoding: Encoding, channels: int, inputs: int) -> tuple[Floats, int | None]:
    """Steps [N, K / block] and the block: the one that is there, or the largest that TensorRT takes with the same
    numbers; [N] and None where none divides the inputs. Two blocks a row at least: one is a scale a channel."""
    if encoding.block is None:
        if encoding.axis not in (None, _CHANNEL):
            raise UnsupportedError(f"{name}: 4-bit codes with a scale an input", "take one scale an output channel")
        steps = np.broadcast_to(encoding.steps(), (channels,))
        block = next((b for b in BLOCKS if inputs % b == 0 and inputs > b), None)
        return (steps, None) if block is None else (steps[:, None].repeat(inputs // block, _INPUTS), block)
    block = next((b for b in BLOCKS if encoding.block % b == 0 and inputs > b), None)
    if encoding.axis != _INPUTS or block is None:
        raise UnsupportedError(f"{name}: 4-bit codes in blocks of {encoding.block} along axis {encoding.axis}",
                               f"TensorRT takes blocks of {', '.join(map(str, BLOCKS))} inputs")
    return encoding.steps().repeat(encoding.block // block, _INPUTS), block


def _half(name: str, steps: Floats, codes: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Scales as float16. codes: [*steps.shape, codes that share the step].

    Where every code is 0 any scale does: the smallest normal number.
    """
    wanted = np.where(~codes.any(-1), np.finfo(np.float16).smallest_normal, steps)
    return near_half(name, wanted, f"give it 16 bits: `quantize.exceptions: {{{name}: 16}}`")


def near_half(name: str, steps: npt.NDArray[Any], change: str) -> npt.NDArray[np.float16]:
    """Scales as float16, of any shape; UnsupportedError, with change as its hint, where that is another scale."""
    wanted = steps.astype(np.float32)
    with np.errstate(all="ignore"):
        made = wanted.astype(np.float16)
        lost = np.abs(made.astype(np.float32) / wanted - 1)
    if not lost.max(initial=0.0) <= _LOSS:
        worst = float(wanted.reshape(-1)[lost.argmax()])
        raise UnsupportedError(f"{name}: a scale of {worst:.3g} has no near float16", change)
    return made
