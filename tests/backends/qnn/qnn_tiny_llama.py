"""A random two-layer Llama as hand-built QDQ ONNX parts: the form that HTP and Genie want.

Written for tests of the QNN backend only; it shares no code with the product's own export, so a
mistake there cannot hide here. Activations are u16, KV u8 around 128, weights i8 per output channel,
linear layers Conv1x1 between transposes, attention one head at a time, past||new concatenated.

Tensors (AR new tokens, CL context): hidden u16 [1,1,AR,H] between parts, ``past_key_i_in``
[kv,1,hd,CL-AR], ``past_value_i_in`` [kv,1,CL-AR,hd], logits u16 [1,1,AR,V].
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Grid = tuple[np.float32, int]
Ranges = dict[str, tuple[float, float]]
MASKED = -60.0
PARTS = 3


@dataclass(frozen=True)
class Tiny:
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 128
    vocab: int = 256
    context: int = 256
    theta: float = 10000.0


def graph_name(ar: int, part: int, model: Tiny) -> str:
    """The contract's name of one part (1-based) at one width."""
    kind = "prompt" if ar > 1 else "token"
    return f"{kind}_ar{ar}_cl{model.context}_{part}_of_{PARTS}"


def rope_tables(model: Tiny) -> tuple[Array, Array]:
    """cos and sin, float32 [context, head_dim / 2]."""
    frequencies = 1 / model.theta ** (np.arange(0, model.head_dim, 2) / model.head_dim)
    angles = np.outer(np.arange(model.context), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def grid(low: float, high: float, bits: int) -> Grid:
    """Scale and zero point of an unsigned grid; 8-bit grids are the cache's and centre on 128."""
    if bits == 8:
        return np.float32(max(-low, high, 1e-3) / 127), 128
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / 65535)
    return scale, round(-low / float(scale))


def codes(x: Array, g: Grid, dtype: type) -> Array:
    info = np.iinfo(dtype)
    return np.clip(np.round(x / g[0]) + g[1], info.min, info.max).astype(dtype)


def _random(name: str, *shape: int, gain: float = 1.0) -> Array:
    return np.random.default_rng(zlib.crc32(name.encode())).normal(0, gain, shape).astype(np.float32)


def embedding_table(model: Tiny) -> Array:
    """float32 [vocab, hidden]."""
    return _random("embed", model.vocab, model.hidden)


class _Builder:
    """Emits the float graph (ranges None, every `q` recorded) or the QDQ graph."""

    def __init__(self, model: Tiny, ar: int, ranges: Ranges | None) -> None:
        self.m, self.ar, self.ranges = model, ar, ranges
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.seen: list[tuple[str, str]] = []

    def const(self, name: str, value: Array) -> str:
        self.constants.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name

    def op(self, kind: str, inputs: list[str], out: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [out], name=out + "/" + kind, **attributes))
        return out

    def qparams(self, key: str, bits: int) -> tuple[str, str]:
        assert self.ranges is not None
        scale, zero = grid(*self.ranges[key], bits)
        dtype = np.uint8 if bits == 8 else np.uint16
        return (
            self.const(f"{key}.scale", np.float32(scale)),
            self.const(f"{key}.zero", np.array(zero, dtype)),
        )

    def q(self, x: str, key: str, bits: int = 16, out: str | None = None) -> str:
        """x on key's grid: quantize then dequantize. `out` names the codes (a graph output)."""
        if self.ranges is None:
            self.seen.append((key, x))
            if out is not None:
                self.op("Identity", [x], out)
            return x
        params = list(self.qparams(key, bits))
        quantized = self.op("QuantizeLinear", [x, *params], out or f"{x}.q{bits}")
        return self.op("DequantizeLinear", [quantized, *params], f"{quantized}.dq")

    def input(self, name: str, shape: list[int], bits: int = 16, key: str | None = None) -> str:
        dtype = {8: TensorProto.UINT8, 16: TensorProto.UINT16}[bits]
        if self.ranges is None:
            self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
            return name
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return self.op("DequantizeLinear", [name, *self.qparams(key or name, bits)], f"{name}.dq")

    def output(self, name: str, shape: list[int], bits: int = 16) -> None:
        dtype = {8: TensorProto.UINT8, 16: TensorProto.UINT16}[bits]
        self.outputs.append(
            helper.make_tensor_value_info(name, dtype if self.ranges else TensorProto.FLOAT, shape)
        )

    def static(self, name: str, value: Array) -> str:
        """A u16 per-tensor constant."""
        if self.ranges is None:
            return self.const(name, value)
        if f"{name}.dq" not in {n.output[0] for n in self.nodes}:
            g = grid(float(value.min()), float(value.max()), 16)
            self.op(
                "DequantizeLinear",
                [
                    self.const(name, codes(value, g, np.uint16)),
                    self.const(f"{name}.scale", g[0]),
                    self.const(f"{name}.zero", np.uint16(g[1])),
                ],
                f"{name}.dq",
            )
        return f"{name}.dq"

    def linear(
        self,
        x: str,
        name: str,
        rows: int,
        columns: int,
        key: str,
        gain: float = 1.0,
        out: str | None = None,
    ) -> str:
        """[1,1,AR,columns] -> [1,1,AR,rows] as Conv1x1 with i8 per-channel weights."""
        weight = _random(name, rows, columns, 1, 1, gain=gain / columns**0.5)
        scale = (np.abs(weight).max((1, 2, 3)) / 127).astype(np.float32)
        ints = np.round(weight / scale.reshape(-1, 1, 1, 1)).astype(np.int8)
        if self.ranges is None:
            w = self.const(name, ints * scale.reshape(-1, 1, 1, 1))
        else:
            w = self.op(
                "DequantizeLinear",
                [
                    self.const(name, ints),
                    self.const(f"{name}.weight_scale", scale),
                    self.const(f"{name}.weight_zero", np.zeros(rows, np.int8)),
                ],
                f"{name}.dq",
                axis=0,
            )
        columns_first = self.op("Transpose", [x], f"{name}.in", perm=[0, 3, 1, 2])
        y = self.op("Conv", [columns_first, w], f"{name}.conv", kernel_shape=[1, 1])
        y = self.op("Transpose", [y], f"{name}.out", perm=[0, 2, 3, 1])
        return self.q(y, key, out=out)

    def norm(self, x: str, name: str) -> str:
        gamma = self.static(f"{name}.gamma", 1 + 0.1 * _random(name, self.m.hidden))
        return self.q(self.op("RMSNormalization", [x, gamma], name, axis=-1, epsilon=1e-5), name)

    def slice(self, x: str, start: int, stop: int, axis: int, out: str) -> str:
        ints = [self.const(f"i64.{v}", np.array([v], np.int64)) for v in (start, stop, axis)]
        return self.op("Slice", [x, *ints], out)

    def rope(self, x: str, name: str) -> str:
        """Half-split rotation of one head, [1,1,AR,hd]."""
        # One Split, not two Slices: a convolution with two readers gets an idle Convert behind it.
        halves = [f"{name}.a", f"{name}.b"]
        self.nodes.append(helper.make_node("Split", [x], halves, f"{name}/Split", axis=3, num_outputs=2))
        a, b = (self.q(half, f"{name}.raw") for half in halves)

        def product(left: str, right: str, tag: str) -> str:
            return self.q(self.op("Mul", [left, right], f"{name}.{tag}"), f"{name}.{tag}")

        low = self.op("Sub", [product(a, self.cos, "ac"), product(b, self.sin, "bs")], f"{name}.low")
        high = self.op("Add", [product(b, self.cos, "bc"), product(a, self.sin, "as")], f"{name}.high")
        both = [self.q(low, f"{name}.rot"), self.q(high, f"{name}.rot")]
        return self.q(self.op("Concat", both, f"{name}.rotated", axis=3), f"{name}.rot")

    def cache(self, new: list[str], past: str, name: str, axis: int, shape: list[int]) -> list[str]:
        """Appends each head's new columns to its slice of the past and declares the output."""
        joined = self.op("Concat", new, f"{name}.new", axis=0)
        self.q(joined, name, 8, out=f"{name}_out")
        self.output(f"{name}_out", shape, 8)
        heads = []
        for head, columns in enumerate(new):
            old = self.q(self.slice(past, head, head + 1, 0, f"{name}.past{head}"), name, 8)
            heads.append(self.q(self.op("Concat", [old, columns], f"{name}.all{head}", axis=axis), name, 8))
        return heads

    def layer(self, x: str, index: int) -> str:
        m, ar, n = self.m, self.ar, f"layers.{index}"
        past = m.context - ar
        keys, values = f"past_key_{index}", f"past_value_{index}"
        past_k = self.input(f"{keys}_in", [m.kv_heads, 1, m.head_dim, past], 8, keys)
        past_v = self.input(f"{values}_in", [m.kv_heads, 1, past, m.head_dim], 8, values)
        y = self.norm(x, f"{n}.input_norm")
        new_k, new_v = [], []
        for head in range(m.kv_heads):
            k = self.linear(y, f"{n}.k{head}", m.head_dim, m.hidden, f"{n}.k{head}.raw", gain=1.4)
            k = self.op("Transpose", [self.rope(k, f"{n}.k{head}")], f"{n}.k{head}.t", perm=[0, 1, 3, 2])
            new_k.append(self.q(self.q(k, f"{n}.k{head}.rot"), keys, 8))
            v = self.linear(y, f"{n}.v{head}", m.head_dim, m.hidden, f"{n}.v{head}")
            new_v.append(self.q(v, values, 8))
        all_k = self.cache(new_k, past_k, keys, 3, [m.kv_heads, 1, m.head_dim, ar])
        all_v = self.cache(new_v, past_v, values, 2, [m.kv_heads, 1, ar, m.head_dim])
        heads = []
        for head in range(m.heads):
            p, kv = f"{n}.q{head}", head * m.kv_heads // m.heads
            query = self.linear(y, p, m.head_dim, m.hidden, f"{p}.raw", gain=1.4 / m.head_dim**0.5)
            score = self.q(self.op("MatMul", [self.rope(query, p), all_k[kv]], f"{p}.score"), f"{p}.score")
            score = self.q(self.op("Add", [score, self.mask], f"{p}.masked"), f"{p}.masked")
            weights = self.q(self.op("Softmax", [score], f"{p}.softmax", axis=-1), "probability")
            heads.append(self.q(self.op("MatMul", [weights, all_v[kv]], f"{p}.mix"), f"{p}.mix"))
        mixed = self.q(self.op("Concat", heads, f"{n}.heads", axis=3), f"{n}.heads")
        x = self.q(
            self.op("Add", [x, self.linear(mixed, f"{n}.o", m.hidden, m.hidden, f"{n}.o")], f"{n}.mid"),
            f"{n}.mid",
        )
        y = self.norm(x, f"{n}.post_norm")
        gate = self.linear(y, f"{n}.gate", m.ffn, m.hidden, f"{n}.gate", gain=1.4)
        up = self.linear(y, f"{n}.up", m.ffn, m.hidden, f"{n}.up", gain=1.4)
        gate = self.op(
            "Mul", [gate, self.q(self.op("Sigmoid", [gate], f"{n}.sigmoid"), f"{n}.sigmoid")], f"{n}.silu"
        )
        y = self.q(self.op("Mul", [self.q(gate, f"{n}.silu"), up], f"{n}.product"), f"{n}.product")
        y = self.linear(y, f"{n}.down", m.hidden, m.ffn, f"{n}.down", gain=1.4)
        last = f"hidden_{index + 1}" if index == m.layers - 1 else None
        return self.q(self.op("Add", [x, y], f"{n}.end"), f"{n}.end", out=last)

    def build(self, parts: tuple[int, ...], name: str) -> onnx.ModelProto:
        """One of the parts, or all of them joined (the float model that is calibrated)."""
        m, ar, between = self.m, self.ar, [1, 1, self.ar, self.m.hidden]
        last = f"layers.{m.layers - 1}.end"
        x = ""
        if 1 in parts:
            self.inputs.append(helper.make_tensor_value_info("input_ids", TensorProto.INT32, [1, ar]))
            table = self.static("embed", embedding_table(m))
            x = self.q(self.op("Gather", [table, "input_ids"], "gathered", axis=0), "embedding")
            one = self.const("i64.axis1", np.array([1], np.int64))
            x = self.q(self.op("Unsqueeze", [x, one], "hidden"), "embedding", out="hidden_0")
            self.output("hidden_0", between)
        if 2 in parts:
            x = x or self.input("hidden_0", between, key="embedding")
            self.mask = self.input("attention_mask", [1, 1, ar, m.context])
            self.cos = self.input("position_ids_cos", [1, 1, ar, m.head_dim // 2])
            self.sin = self.input("position_ids_sin", [1, 1, ar, m.head_dim // 2])
            for index in range(m.layers):
                x = self.layer(x, index)
            self.output(f"hidden_{m.layers}", between)
        if 3 in parts:
            x = x or self.input(f"hidden_{m.layers}", between, key=last)
            y = self.norm(x, "norm")
            self.linear(y, "lm_head", m.vocab, m.hidden, "logits", gain=2.0, out="logits")
            self.output("logits", [1, 1, ar, m.vocab])
        return self.model(name)

    def model(self, name: str) -> onnx.ModelProto:
        # A QDQ output leaves a DequantizeLinear behind that nobody reads: HTP would run it in float.
        wanted = {o.name for o in self.outputs}
        if self.ranges is not None:
            used = {i for n in self.nodes for i in n.input} | wanted
            self.nodes = [n for n in self.nodes if n.output[0] in used]
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, list(self.constants.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
        model.ir_version = 10
        onnx.checker.check_model(model, full_check=True)
        return model


def cpu_session(model: onnx.ModelProto | Path) -> ort.InferenceSession:
    """The reference of a QDQ graph: ORT on CPU with every rewrite off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def calibrate(model: Tiny, ar: int = 32, windows: int = 4) -> Ranges:
    """Ranges of every tensor over random ids, from the float graph; the cache's grids are symmetric."""
    builder = _Builder(model, ar, None)
    graph = builder.build((1, 2, 3), "float")
    keys = builder.seen
    present = {o.name for o in graph.graph.output}
    for value in {v for _, v in keys} - present:
        graph.graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
    session = cpu_session(graph)
    cos, sin = rope_tables(model)
    rng, past = np.random.default_rng(1), model.context - ar
    mask = np.full((1, 1, ar, model.context), MASKED, np.float32)
    mask[0, 0, :, past:] = np.where(np.tri(ar, dtype=bool), 0, MASKED)
    ranges: Ranges = {}
    for _ in range(windows):
        feeds: dict[str, Array] = {
            "input_ids": rng.integers(0, model.vocab, (1, ar)).astype(np.int32),
            "attention_mask": mask,
            "position_ids_cos": cos[None, None, :ar],
            "position_ids_sin": sin[None, None, :ar],
        }
        feeds |= {i.name: np.zeros(i.shape, np.float32) for i in session.get_inputs() if i.name not in feeds}
        names = [o.name for o in session.get_outputs()]
        found = dict(zip(names, session.run(names, feeds), strict=True))
        for key, value in keys:
            low, high = ranges.get(key, (0.0, 0.0))
            ranges[key] = (min(low, float(found[value].min())), max(high, float(found[value].max())))
    # Gather runs in integers only when its table and its output have one grid.
    table = embedding_table(model)
    ranges["embedding"] = (float(table.min()), float(table.max()))
    ranges |= {
        "attention_mask": (MASKED, 0.0),
        "position_ids_cos": (-1.0, 1.0),
        "position_ids_sin": (-1.0, 1.0),
        "probability": (0.0, 1.0),
    }
    return ranges


def build_part(model: Tiny, ranges: Ranges, ar: int, part: int) -> onnx.ModelProto:
    """The QDQ graph of one part (1 embedding, 2 layers, 3 head)."""
    return _Builder(model, ar, ranges).build((part,), graph_name(ar, part, model))


def write_parts(
    model: Tiny, ranges: Ranges, folder: Path, widths: tuple[int, ...] = (32, 1)
) -> dict[str, Path]:
    """All parts at all widths as files; graph name -> path."""
    paths = {}
    for part in range(1, PARTS + 1):
        for ar in widths:
            name = graph_name(ar, part, model)
            paths[name] = folder / f"{name}.onnx"
            onnx.save(build_part(model, ranges, ar, part), paths[name])
    return paths
