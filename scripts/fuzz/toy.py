"""The smallest real things to damage: a bundle that answers, a graph with external weights, a checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "runtimes" / "tests"), str(ROOT / "tests" / "backends" / "qnn")]

import tiny_models  # noqa: E402
import tiny_tokenizers  # noqa: E402


def bundle(folder: Path) -> None:
    """Two quantized layers, widths 8 and 1, a tokenizer, one recorded call of each width, and a lock."""
    from edgeforge_runtime import rope
    from edgeforge_runtime.executors import open_executor
    from edgeforge_runtime.manifest import Manifest
    from edgeforge_runtime.session import Session

    from edgeforge import lock
    from edgeforge.export import record

    tiny_models.Tiny(quantized=True).write(folder)
    manifest = Manifest.load(folder)
    target = manifest.targets["cpu"]
    recorder = record.Recorder(open_executor(target, folder, exact=True, threads=1))
    with Session(manifest, target, recorder, rope.read(folder / manifest.rope)) as session:
        session.prompt(list(range(1, 11)))
        session.step(3)
    for label, call in (("ar8", recorder.calls[0]), ("ar1_0", recorder.calls[-1])):
        record.save(folder / "vectors" / "whole" / label, call)
        record.save(folder / "vectors" / "parts" / label / f"ar{call.ar}", call)
    inputs = {"threads": 1, "model": "", "tools": {}, "recipe": {"gates": {"emulator_db": 40.0, "wide_db": 20.0}}}
    locked = {"format": "edgeforge-lock-1", "source": "nowhere", "inputs": inputs, "files": {}, "stages": {}}
    (folder / lock.FILE).write_text(json.dumps(locked), encoding="utf-8")


def graph() -> ir.Model:
    """The bundle's float graph; its larger weights lie in model.data once it is saved."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        tiny_models.Tiny().write(Path(place))
        model = onnx.load(Path(place) / "model_0.onnx")
    return ir.from_proto(model)


def network() -> ir.Model:
    """Somebody's own network, every size fixed: two products, one of them with a weight outside the file."""
    tensors = {"w": np.ones((24, 24), np.float32), "b": np.ones(24, np.float32), "shape": np.array([6, 4], np.int64)}
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("Add", ["h", "b"], ["s"]),
             onnx.helper.make_node("Relu", ["s"], ["r"]), onnx.helper.make_node("Reshape", ["r", "shape"], ["v"]),
             onnx.helper.make_node("Transpose", ["v"], ["y"], perm=[1, 0])]
    float32 = onnx.TensorProto.FLOAT
    made = onnx.helper.make_graph(
        nodes, "net", [onnx.helper.make_tensor_value_info("x", float32, (1, 24))],
        [onnx.helper.make_tensor_value_info("y", float32, (4, 6))],
        [onnx.numpy_helper.from_array(a, n) for n, a in tensors.items()])
    return ir.from_proto(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10))


def checkpoint(folder: Path) -> None:
    """config.json, two shards with an index, and a tokenizer with a chat template."""
    from safetensors.numpy import save_file

    tiny_tokenizers.write(folder, tiny_tokenizers.byte_fallback())
    config = json.loads((ROOT / "test_vectors" / "configs" / "llama.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2], "bos_token_id": 1}))
    (folder / "chat_template.jinja").write_text(tiny_tokenizers.TEMPLATE)
    shards = {"model-00001-of-00002.safetensors": ("model.embed_tokens.weight", "model.norm.weight"),
              "model-00002-of-00002.safetensors": ("lm_head.weight", *(f"model.layers.{i}.{n}.weight" for i in range(2)
                                                   for n in ("self_attn.q_proj", "mlp.down_proj")))}
    for file, names in shards.items():
        save_file({n: np.ones((4, 8) if "norm" not in n else (8,), np.float32) for n in names}, folder / file)
    index = {"metadata": {"total_size": 288}, "weight_map": {n: f for f, names in shards.items() for n in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def gguf_file(path: Path) -> bytes:
    """A one-layer Llama with every kind of metadata: numbers, texts, arrays of both."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    for key in ("context_length", "block_count", "embedding_length", "feed_forward_length", "vocab_size",
                "attention.head_count", "attention.head_count_kv", "rope.dimension_count"):
        writer.add_uint32(f"llama.{key}", {"block_count": 1, "attention.head_count": 2}.get(key, 8))
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_array("tokenizer.ggml.tokens", [f"<{i}>" for i in range(8)])
    writer.add_array("tokenizer.ggml.token_type", [1] * 8)
    writer.add_string("general.name", "toy")
    for name in ("token_embd", "output_norm", "blk.0.attn_q", "blk.0.ffn_up"):
        writer.add_tensor(f"{name}.weight", np.ones((8, 8) if "norm" not in name else 8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def gguf_boundaries(raw: bytes) -> list[int]:
    """Where the header's numbers and texts begin: each text has its length eight bytes before it."""
    found = [0, 4, 8, 16, 24]
    for mark in (b"general.", b"llama.", b"tokenizer.", b"blk.", b"token_embd", b"output_norm", b"<"):
        at = raw.find(mark)
        while at >= 0:
            end = at + int.from_bytes(raw[at - 8 : at], "little")
            found += [at - 8, at, end, end + 4, end + 8, end + 12]
            at = raw.find(mark, at + 1)
    return sorted({b for b in found if 0 <= b < len(raw)})


def context_binary(folder: Path) -> bytes:
    """A binary by Qualcomm's compiler: two widths of one convolution, weights shared."""
    import qnn_small_graphs

    from edgeforge.backends.qnn.compiler import compile_part
    from edgeforge.backends.qnn.job import GraphJob, PartJob

    graphs = []
    for tokens in (8, 1):
        onnx.save(qnn_small_graphs.conv(tokens), folder / f"ar{tokens}.onnx")
        graphs.append(GraphJob(f"ar{tokens}_cl8", folder / f"ar{tokens}.onnx", None))
    part = compile_part(PartJob("part", tuple(graphs), 57, folder / "part", True), 300)
    return part.binary.read_bytes()


_PLACES = ("../../etc/passwd", "/etc/passwd", "-1", str(2**70), "x", "", "0", "model.data", "\x00")
_SIZES = (0, 1, -1, 7, 2**31, 2**40, 2**62, -(2**63))


def damaged(rng: Random, raw: bytes) -> bytes:
    """An ONNX file that still is a protobuf, with one to three things wrong in it."""
    model = onnx.ModelProto.FromString(raw)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _DAMAGE[rng.randrange(len(_DAMAGE))](rng, model.graph)
    if rng.random() < 0.1:
        model.ir_version = rng.choice((0, 3, 99, 2**40))
    if rng.random() < 0.1:
        del model.opset_import[:]
    return model.SerializeToString()


def _tensor(rng: Random, g: Any) -> None:
    tensor = rng.choice(g.initializer)
    match rng.randrange(6):
        case 0:
            tensor.data_type = rng.choice((0, 2, 7, 8, 10, 16, 21, 22, 23, 99, -1))
        case 1:
            del tensor.dims[:]
            tensor.dims.extend(rng.choices(_SIZES, k=rng.randrange(4)))
        case 2:
            tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
        case 3:
            tensor.name = rng.choice(("", "v1", "\u202e", "a/../b", "c0"))
        case 4:
            tensor.ClearField("raw_data")
            tensor.float_data.extend([1.0] * rng.choice((0, 1, 5)))
        case _:
            for entry in tensor.external_data:
                entry.value = rng.choice(_PLACES)
            if not tensor.external_data:
                tensor.data_location = onnx.TensorProto.EXTERNAL


def _node(rng: Random, g: Any) -> None:
    node = rng.choice(g.node)
    match rng.randrange(6):
        case 0:
            node.op_type = rng.choice(("", "Nope", "If", "Loop", "Constant", "Gather"))
        case 1:
            if node.input:
                node.input[rng.randrange(len(node.input))] = rng.choice(("", "nobody", "logits", g.node[-1].output[0]))
        case 2:
            node.output[0] = rng.choice(("", "v1", "logits"))
        case 3:
            del node.input[:]
        case 4:
            name = rng.choice(("axis", "perm", "value", ""))
            node.attribute.append(onnx.helper.make_attribute(name, rng.choice(_SIZES[:4])))
        case _:
            for attribute in node.attribute:
                attribute.type = rng.choice((0, 1, 2, 3, 4, 5, 7, 11))


def _value(rng: Random, g: Any) -> None:
    value = rng.choice([*g.input, *g.output])
    match rng.randrange(4):
        case 0:
            value.name = rng.choice(("", "v1", "logits", "c0"))
        case 1:
            value.ClearField("type")
        case 2:
            for dim in value.type.tensor_type.shape.dim:
                dim.dim_value = rng.choice(_SIZES)
        case _:
            value.type.tensor_type.elem_type = rng.choice((0, 8, 16, 23, 99))


def _order(rng: Random, g: Any) -> None:
    nodes = list(g.node)
    rng.shuffle(nodes)
    del g.node[:]
    g.node.extend(nodes)


def _drop(rng: Random, g: Any) -> None:
    field = rng.choice((g.node, g.initializer, g.input, g.output))
    if len(field):
        del field[rng.randrange(len(field))]


_DAMAGE = (_tensor, _tensor, _tensor, _node, _node, _value, _value, _order, _drop)
