"""Reading and rewriting a graph's parameters: in float64 for the exact transforms, as tensors for the searches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from edgeforge.errors import UnsupportedError
from edgeforge.graph import edit

Matrix = npt.NDArray[np.float64]
_FLAT = 2


def parameter(node: ir.Node, index: int) -> ir.Value:
    """node's input, which must be a parameter that nobody else reads: rewriting it changes node alone."""
    value = node.inputs[index]
    if value is None or not value.is_initializer():
        raise UnsupportedError(f"{node.outputs[0].name}: input {index} of {node.op_type} is not a parameter")
    if len(list(value.uses())) != 1:
        raise UnsupportedError(f"{value.name} is shared: rewriting it would change another layer")
    return value


def get(value: ir.Value) -> Matrix:
    array = edit.constant(value)
    if array is None:
        raise ValueError(f"{value.name} is not a constant")
    return array.astype(np.float64)


def put(value: ir.Value, array: Matrix) -> None:
    """Replaces the parameter; its shape may change."""
    value.const_value = ir.tensor(np.ascontiguousarray(array, np.float32), name=value.name)
    value.shape = ir.Shape(array.shape)


def matrix(value: ir.Value) -> Matrix:
    """A 1x1 convolution's weight as [outputs, inputs]."""
    array = get(value)
    if array.ndim < 2 or any(d != 1 for d in array.shape[2:]):
        raise UnsupportedError(f"{value.name} is no 1x1 convolution's weight: {array.shape}")
    return array.reshape(array.shape[:2])


def put_matrix(value: ir.Value, array: Matrix) -> None:
    """Replaces a 1x1 convolution's weight by [outputs, inputs]."""
    put(value, array.reshape(*array.shape, *[1] * (get(value).ndim - 2)))


@dataclass(frozen=True)
class Projection:
    """A product with a parameter, y = W x + b, as 1x1 convolution or MatMul. turned: W lies [outputs, inputs]."""

    weight: ir.Value
    bias: ir.Value | None
    turned: bool

    def matrix(self) -> Matrix:
        """W, [outputs, inputs]."""
        if len(self.weight.shape or ()) > _FLAT:
            return matrix(self.weight)
        return get(self.weight) if self.turned else get(self.weight).T

    def put(self, array: Matrix) -> None:
        """Replaces W by [outputs, inputs]."""
        if len(self.weight.shape or ()) > _FLAT:
            put_matrix(self.weight, array)
        else:
            put(self.weight, array if self.turned else array.T)
            for use in self.weight.uses() if self.turned else ():
                edit.set_shape(use.node.outputs[0], [*reversed(array.shape)])


def projection(node: ir.Node, add: ir.Node | None = None) -> Projection:
    """node with its own parameters.

    Args:
        add: what adds a bias to a MatMul, if anything does.

    Raises:
        UnsupportedError: a parameter of it is shared, or is none.
    """
    if node.op_type == "Conv":
        return Projection(parameter(node, 1), parameter(node, 2) if len(node.inputs) > 2 else None, True)
    turn = edit.producer(node.inputs[1], "Transpose")
    weight = parameter(node if turn is None else turn, 1 if turn is None else 0)
    if turn is not None and len(list(turn.outputs[0].uses())) != 1:
        raise UnsupportedError(f"{weight.name} is shared: rewriting it would change another layer")
    bias = next((i for i, v in enumerate(add.inputs) if v is not None and v.is_initializer()), None) if add else None
    return Projection(weight, parameter(add, bias) if add is not None and bias is not None else None, turn is not None)


def scale_outputs(conv: ir.Node, factors: Matrix) -> None:
    """conv's output channels times factors: rows of its weight, and its bias."""
    weight = parameter(conv, 1)
    put_matrix(weight, matrix(weight) * factors[:, None])
    if len(conv.inputs) > 2:
        bias = parameter(conv, 2)
        put(bias, get(bias) * factors)


def scale_inputs(conv: ir.Node, factors: Matrix) -> None:
    """conv reads its input channels times factors: columns of its weight."""
    weight = parameter(conv, 1)
    put_matrix(weight, matrix(weight) * factors)


def read(value: ir.Value) -> torch.Tensor:
    """A copy of a parameter. The file behind it is let go of: a mapped page counts as memory until then."""
    tensor = value.const_value
    if tensor is None:
        raise ValueError(f"{value.name} is not a constant")
    copy = torch.from_numpy(np.array(tensor.numpy()))
    if isinstance(tensor, ir.ExternalTensor):
        tensor.release()
    return copy
