"""One-operator QDQ graphs with known virtues and vices, for tests of the QNN backend.

All have u16 inputs and outputs on the grid (code - 32768) / 4096.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
SCALE, ZERO = np.float32(1 / 4096), np.uint16(32768)


class Small:
    """Collects nodes; `q` puts a value on the common grid (or a u8 one), named after the value."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.const("scale", SCALE)
        self.const("zero", ZERO)
        self.const("scale8", np.float32(1 / 16))
        self.const("zero8", np.uint8(128))

    def const(self, name: str, value: Any) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def op(self, kind: str, inputs: list[str], out: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [out], name=f"{out}/{kind}", **attributes))
        return out

    def input(self, name: str, *shape: int) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.UINT16, shape))
        return self.op("DequantizeLinear", [name, "scale", "zero"], f"{name}.dq")

    def q(self, x: str, bits: int = 16) -> str:
        params = ["scale", "zero"] if bits == 16 else ["scale8", "zero8"]
        codes = self.op("QuantizeLinear", [x, *params], f"{x}.q")
        return self.op("DequantizeLinear", [codes, *params], f"{x}.qdq")

    def output(self, x: str, *shape: int) -> None:
        self.op("QuantizeLinear", [x, "scale", "zero"], "y")
        self.outputs.append(helper.make_tensor_value_info("y", TensorProto.UINT16, shape))

    def weight(self, name: str, value: Array) -> str:
        """i8 per output channel (axis 0)."""
        scale = (np.abs(value).reshape(len(value), -1).max(1) / 127).astype(np.float32)
        codes = np.round(value / scale.reshape(-1, *[1] * (value.ndim - 1))).astype(np.int8)
        zeros = np.zeros(len(value), np.int8)
        inputs = [self.const(name, codes), self.const(f"{name}.s", scale), self.const(f"{name}.z", zeros)]
        return self.op("DequantizeLinear", inputs, f"{name}.dq", axis=0)

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "small", self.inputs, self.outputs, list(self.constants.values())
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
        model.ir_version = 10
        onnx.checker.check_model(model, full_check=True)
        return model


def conv_in_blocks(block: int, outputs: int, inputs: int, kind: Any = ml_dtypes.int4,
                   bias: bool = False) -> onnx.ModelProto:
    """Conv1x1 [1,1,1,inputs] -> [1,1,1,outputs] whose weight w has blocks with whole-number scales.

    bias: int32 on the grid of the input's scale times the channel's.
    """
    g = Small()
    rng = np.random.default_rng(0)
    whole = rng.integers(1, 17, (outputs, inputs // block, 1, 1))
    whole[:, 0] = 16
    unit = rng.uniform(0.5, 1, (outputs, 1, 1, 1)).astype(np.float32) * np.float32(2e-3 * inputs**-0.5)
    arrays = {"w": rng.integers(-8, 8, (outputs, inputs, 1, 1)).astype(kind), "w.s": (whole * unit).astype(np.float32),
              "w.z": np.zeros(whole.shape, kind)}
    w = g.op("DequantizeLinear", [g.const(n, a) for n, a in arrays.items()], "w.dq", axis=1, block_size=block)
    x = g.op("Transpose", [g.input("x", 1, 1, 1, inputs)], "first", perm=[0, 3, 1, 2])
    operands = [x, w]
    if bias:
        step = SCALE * unit.reshape(-1)
        codes = np.rint(np.linspace(-2, 2, outputs) / step).astype(np.int32)
        parts = [g.const("b", codes), g.const("b.s", step), g.const("b.z", np.zeros(outputs, np.int32))]
        operands.append(g.op("DequantizeLinear", parts, "b.dq", axis=0))
    y = g.q(g.op("Conv", operands, "conv", kernel_shape=[1, 1]))
    g.output(g.op("Transpose", [y], "last", perm=[0, 2, 3, 1]), 1, 1, 1, outputs)
    return g.model()


def conv(tokens: int, channels: int = 64, seed: int = 0) -> onnx.ModelProto:
    """Conv1x1 [1,1,tokens,channels] -> the same shape; weights decided by seed and channels alone."""
    g = Small()
    values = np.random.default_rng(seed).normal(0, channels**-0.5, (channels, channels, 1, 1))
    w = g.weight("w", values.astype(np.float32))
    x = g.op("Transpose", [g.input("x", 1, 1, tokens, channels)], "first", perm=[0, 3, 1, 2])
    y = g.q(g.op("Conv", [x, w], "conv", kernel_shape=[1, 1]))
    g.output(g.op("Transpose", [y], "last", perm=[0, 2, 3, 1]), 1, 1, tokens, channels)
    return g.model()


def two_readers() -> onnx.ModelProto:
    """A convolution that two Slices read: ONNX Runtime leaves a Convert between equal grids behind it."""
    g = Small()
    w = g.weight("w", np.random.default_rng(0).normal(0, 0.1, (64, 64, 1, 1)).astype(np.float32))
    x = g.op("Transpose", [g.input("x", 1, 1, 32, 64)], "first", perm=[0, 3, 1, 2])
    y = g.op("Transpose", [g.op("Conv", [x, w], "conv", kernel_shape=[1, 1])], "last", perm=[0, 2, 3, 1])
    y = g.q(y)
    start, middle, end, axis = (g.const(f"i{v}", np.array([v], np.int64)) for v in (0, 32, 64, 3))
    halves = [
        g.op("Slice", [y, a, b, axis], n) for a, b, n in ((start, middle, "low"), (middle, end, "high"))
    ]
    g.output(g.op("Sub", [g.q(h) for h in halves], "difference"), 1, 1, 32, 32)
    return g.model()


def matmul_u16() -> onnx.ModelProto:
    """u16 x u16: compiles, but HTP rounds the second operand to u8 on its own."""
    g = Small()
    y = g.op("MatMul", [g.input("a", 1, 1, 32, 64), g.input("b", 1, 1, 64, 32)], "product")
    g.output(y, 1, 1, 32, 32)
    return g.model()


def matmul_u8() -> onnx.ModelProto:
    """u16 x u8 where the graph itself asks for the u8 grid."""
    g = Small()
    b = g.q(g.input("b", 1, 1, 64, 32), 8)
    g.output(g.op("MatMul", [g.input("a", 1, 1, 32, 64), b], "product"), 1, 1, 32, 32)
    return g.model()


def island() -> onnx.ModelProto:
    """Add of u16 and u8: compiles, silently in float."""
    g = Small()
    g.output(
        g.op("Add", [g.input("a", 1, 1, 32, 64), g.q(g.input("b", 1, 1, 32, 64), 8)], "sum"), 1, 1, 32, 64
    )
    return g.model()


def unsupported() -> onnx.ModelProto:
    """Det, which HTP does not have, between two operators that it has."""
    g = Small()
    x = g.q(g.op("Relu", [g.input("x", 1, 4, 4)], "relu"))
    y = g.q(g.op("Det", [x], "determinant"))
    g.output(g.op("Add", [y, y], "twice"), 1)
    return g.model()
