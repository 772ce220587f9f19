"""Tiny random decoders: a numpy reference, and bundles with the same weights in every cache layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from edgeforge_runtime.manifest import (
    COS,
    IDS,
    LOGITS,
    MASK,
    SIN,
    SWA_COS,
    SWA_SIN,
    Graph,
    Manifest,
    Model,
    Part,
    Target,
    Tensor,
)
from onnx import TensorProto, helper, numpy_helper

H, KV, HD, LAYERS, VOCAB, PADDED, MASKED = 16, 2, 8, 2, 90, 96, -50.0
GRIDS = {
    MASK: ("uint16", 50 / 65535, 65535),
    COS: ("uint16", 2 / 65535, 32768),
    SIN: ("uint16", 2 / 65535, 32768),
    SWA_COS: ("uint16", 2 / 65535, 32768),
    SWA_SIN: ("uint16", 2 / 65535, 32768),
    LOGITS: ("uint16", 60 / 65535, 32768),
    "cache": ("uint8", 8 / 255, 128),
}


@dataclass
class Tiny:
    """What to build. transposed: [kv,1,hd,P] keys, else [1,kv,P,hd]; last_row: widths that give one row;
    swa: layer 0 rotates by a table of its own."""

    transposed: bool = True
    quantized: bool = False
    widths: tuple[int, ...] = (8, 1)
    cl: int = 32
    two_parts: bool = False
    last_row: tuple[int, ...] = ()
    swa: bool = False
    seed: int = 0
    weights: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        r = np.random.default_rng(self.seed)
        w = {"embed": r.normal(0, 1, (PADDED, H)), "head": r.normal(0, 0.7, (H, PADDED))}
        for layer in range(LAYERS):
            w |= {f"{layer}.{n}": r.normal(0, 0.2, (H, H)) for n in "qkvo"}
        self.weights = {n: a.astype(np.float32) for n, a in w.items()}
        self.weights["head"][:, VOCAB:] *= 10  # rows of padding that would win if anybody looked

    @property
    def axes(self) -> tuple[int, int]:
        return (3, 2) if self.transposed else (2, 2)

    def rope(self, name: str = COS) -> tuple[Any, Any]:
        """cos and sin of the table whose cosines are the input called name."""
        base = 100 if name == COS else 3
        angles = np.outer(np.arange(self.cl), 1 / base ** (np.arange(HD // 2) / (HD // 2)))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def rows(self, layer: int) -> tuple[str, str]:
        """The inputs that a layer rotates by."""
        return (SWA_COS, SWA_SIN) if self.swa and layer == 0 else (COS, SIN)

    def reference(self, ids: list[int]) -> Any:
        """Float logits [tokens, VOCAB] of a plain causal forward pass."""
        w, n = self.weights, len(ids)

        def turn(x: Any) -> Any:
            a, b = x[..., : HD // 2], x[..., HD // 2 :]
            cos, sin = (t[:n] for t in self.rope(self.rows(layer)[0]))
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        x = w["embed"][ids]
        for layer in range(LAYERS):
            q, k, v = ((x @ w[f"{layer}.{p}"]).reshape(n, KV, HD).swapaxes(0, 1) for p in "qkv")
            scores = turn(q) @ turn(k).swapaxes(1, 2) + np.where(np.tri(n, dtype=bool), 0, -np.inf)
            chances = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = chances / chances.sum(-1, keepdims=True) @ v
            x = x + mixed.swapaxes(0, 1).reshape(n, H) @ w[f"{layer}.o"]
        return (x @ w["head"])[:, :VOCAB]

    def write(self, folder: Path, **model: Any) -> Path:
        """A bundle with target "cpu": one file (or two) with symbolic widths, plus one per last_row width."""
        tables = dict(zip(("cos", "sin"), self.rope(), strict=True))
        if self.swa:
            tables |= dict(zip(("swa_cos", "swa_sin"), self.rope(SWA_COS), strict=True))
        np.savez(folder / "rope.npz", **tables)
        cuts = [(0, 1), (1, LAYERS)] if self.two_parts else [(0, LAYERS)]
        graphs = []
        for ar in sorted(self.widths, reverse=True):
            last = ar in self.last_row
            parts = []
            for number, (start, stop) in enumerate(cuts):
                file = f"model{'_last' if last else ''}_{number}.onnx"
                onnx.save(_Builder(self, start, stop, last).model(), str(folder / file))
                parts.append(self._part(file, ar, start, stop, last))
            graphs.append(Graph(ar, self.cl, tuple(parts)))
        settings = {"name": "tiny", "layers": LAYERS, "vocab_size": VOCAB, "context": self.cl, "eos": (2,)}
        settings |= {"bos": None, "pad": 0, "masked": MASKED}
        settings |= {"key_axis": self.axes[0], "value_axis": self.axes[1]}
        tokenizer = model.pop("tokenizer", None)
        targets = {"cpu": Target("onnx-cpu", tuple(graphs))}
        Manifest(Model(**settings | model), "rope.npz", targets, tokenizer).save(folder)
        return folder

    def tensor(self, name: str, grid: str, shape: tuple[int, ...]) -> Tensor:
        dtype, scale, zero = _grid(self, grid)
        return Tensor(name, dtype, shape, scale, zero)

    def taken(self, start: int, stop: int) -> list[str]:
        """The rotary inputs of layers start..stop-1."""
        return list(dict.fromkeys(name for layer in range(start, stop) for name in self.rows(layer)))

    def cache_shape(self, kind: str, tokens: Any) -> tuple[Any, ...]:
        if not self.transposed:
            return (1, KV, tokens, HD)
        return (KV, 1, HD, tokens) if kind == "key" else (KV, 1, tokens, HD)

    def _part(self, file: str, ar: int, start: int, stop: int, last: bool) -> Part:
        inputs = [self.tensor(MASK, MASK, (1, 1, ar, self.cl))]
        inputs += [self.tensor(name, name, (1, 1, ar, HD // 2)) for name in self.taken(start, stop)]
        outputs = []
        for layer in range(start, stop):
            for kind in ("key", "value"):
                past, new = self.cache_shape(kind, self.cl - ar), self.cache_shape(kind, ar)
                inputs.append(self.tensor(f"past_{kind}_{layer}_in", "cache", past))
                outputs.append(self.tensor(f"past_{kind}_{layer}_out", "cache", new))
        hidden = Tensor("hidden", "float32", (1, ar, H))
        inputs.insert(0, Tensor(IDS, "int32", (1, ar)) if start == 0 else hidden)
        logits = self.tensor(LOGITS, LOGITS, (1, 1 if last else ar, PADDED))
        outputs.append(logits if stop == LAYERS else hidden)
        return Part(file, f"ar{ar}", tuple(inputs), tuple(outputs))


def _grid(tiny: Tiny, name: str) -> tuple[str, float | None, int]:
    return GRIDS[name] if tiny.quantized else ("float32", None, 0)


class _Builder:
    """Layers start..stop-1 as ONNX, with the embedding in front and the head behind at the ends."""

    def __init__(self, tiny: Tiny, start: int, stop: int, last: bool) -> None:
        self.tiny, self.start, self.stop, self.last = tiny, start, stop, last
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weight(self, name: str) -> str:
        value = self.tiny.weights[name]
        if not self.tiny.quantized:
            return self.constant(value)
        scale = (np.abs(value).max(0) / 127).astype(np.float32)
        codes = np.rint(value / scale).astype(np.int8)
        zero = np.zeros(scale.shape, np.int8)
        return self.op("DequantizeLinear", *map(self.constant, (codes, scale, zero)), axis=1)

    def grid(self, name: str) -> tuple[str, str]:
        dtype, scale, zero = GRIDS[name]
        return self.constant(np.float32(scale)), self.constant(np.dtype(dtype).type(zero))

    def take(self, name: str, grid: str, shape: tuple[Any, ...]) -> str:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(_grid(self.tiny, grid)[0]))
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return self.op("DequantizeLinear", name, *self.grid(grid)) if self.tiny.quantized else name

    def give(self, value: str, name: str, grid: str, shape: tuple[Any, ...]) -> str:
        """Makes value an output and hands back what the graph itself goes on with."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(_grid(self.tiny, grid)[0]))
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))
        if not self.tiny.quantized:
            self.nodes.append(helper.make_node("Identity", [value], [name]))
            return name
        self.nodes.append(helper.make_node("QuantizeLinear", [value, *self.grid(grid)], [name]))
        return self.op("DequantizeLinear", name, *self.grid(grid))

    def turn(self, x: str, cos: str, sin: str) -> str:
        a = self.op("Slice", x, self.ints(0), self.ints(HD // 2), self.ints(3))
        b = self.op("Slice", x, self.ints(HD // 2), self.ints(HD), self.ints(3))
        low = self.op("Sub", self.op("Mul", a, cos), self.op("Mul", b, sin))
        high = self.op("Add", self.op("Mul", b, cos), self.op("Mul", a, sin))
        return self.op("Concat", low, high, axis=3)

    def heads(self, x: str, weight: str) -> str:
        """[1, AR, H] -> [1, KV, AR, HD]"""
        y = self.op("Reshape", self.op("MatMul", x, self.weight(weight)), self.ints(1, -1, KV, HD))
        return self.op("Transpose", y, perm=[0, 2, 1, 3])

    def cached(self, new: str, kind: str, layer: int) -> str:
        """Concatenates the past in the bundle's layout and hands back [1, KV, total, HD]."""
        perm = [0, 1, 2, 3]
        if self.tiny.transposed:
            perm = [1, 0, 3, 2] if kind == "key" else [1, 0, 2, 3]
        name, shape = f"past_{kind}_{layer}", self.tiny.cache_shape
        past = self.take(f"{name}_in", "cache", shape(kind, "past"))
        made = self.give(self.op("Transpose", new, perm=perm), f"{name}_out", "cache", shape(kind, "ar"))
        axis = self.tiny.axes[0] if kind == "key" else self.tiny.axes[1]
        whole = self.op("Concat", past, made, axis=axis)
        back = [perm.index(i) for i in range(4)]
        return self.op("Transpose", whole, perm=back)

    def layer(self, x: str, layer: int, mask: str, cos: str, sin: str) -> str:
        q, k, v = (self.heads(x, f"{layer}.{p}") for p in "qkv")
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        k, v = self.cached(k, "key", layer), self.cached(v, "value", layer)
        scores = self.op("Add", self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2])), mask)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        flat = self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.ints(1, -1, H))
        return self.op("Add", x, self.op("MatMul", flat, self.weight(f"{layer}.o")))

    def model(self) -> Any:
        if self.start == 0:
            self.inputs.append(helper.make_tensor_value_info(IDS, TensorProto.INT32, (1, "ar")))
            x = self.op("Gather", self.constant(self.tiny.weights["embed"]), IDS)
        else:
            self.inputs.append(helper.make_tensor_value_info("hidden", TensorProto.FLOAT, (1, "ar", H)))
            x = "hidden"
        mask = self.take(MASK, MASK, (1, 1, "ar", "total"))
        taken = {n: self.take(n, n, (1, 1, "ar", HD // 2)) for n in self.tiny.taken(self.start, self.stop)}
        for layer in range(self.start, self.stop):
            x = self.layer(x, layer, mask, *(taken[n] for n in self.tiny.rows(layer)))
        if self.stop == LAYERS:
            if self.last:
                x = self.op("Slice", x, self.ints(-1), self.ints(2**31), self.ints(1))
            logits = self.op("MatMul", x, self.weight("head"))
            self.give(logits, LOGITS, LOGITS, (1, 1 if self.last else "ar", PADDED))
        else:
            self.nodes.append(helper.make_node("Identity", [x], ["hidden"]))
            self.outputs.append(helper.make_tensor_value_info("hidden", TensorProto.FLOAT, (1, "ar", H)))
        constants = list(self.constants.values())
        graph = helper.make_graph(self.nodes, "tiny", self.inputs, self.outputs, constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
        made.ir_version = 10
        onnx.checker.check_model(made)
        return made
