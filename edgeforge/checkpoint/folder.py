"""A HuggingFace folder: which files are the checkpoint, and that they belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgeforge.checkpoint import pickled
from edgeforge.checkpoint.files import check_regular, indexed, read_json, tree
from edgeforge.checkpoint.headers import read_header
from edgeforge.checkpoint.opened import CONFIG, Checkpoint, TensorInfo
from edgeforge.checkpoint.words import names
from edgeforge.errors import CheckpointError, UnsupportedError

_GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Beside the weights, everything that transformers reads to make a config, a tokenizer or a chat template.
_SIDE_SUFFIXES = {".json", ".jinja", ".txt", ".model", ".tiktoken"}
_OTHER_WEIGHTS = {".h5", ".msgpack", ".ckpt"}
_FLOATS = {"F64", "F32", "F16", "BF16"}
_QUANTIZED_HINT = "start from the float checkpoint that it was made of: quantizing twice only adds error"


def open_folder(folder: Path, allow_pickle: bool) -> Checkpoint:
    """Reads config and weight headers.

    Args:
        folder: absolute.
        allow_pickle: take `.bin` and `.pt` weights where there are no safetensors.

    Raises:
        CheckpointError, UnsupportedError: see `open_checkpoint`.
    """
    if (folder / "adapter_config.json").is_file():
        raise UnsupportedError(
            f"{folder} holds a LoRA adapter",
            "merge it into its base (peft: `merge_and_unload()`, `save_pretrained()`) and give that folder",
        )
    root = tree(folder)
    side = tuple(sorted(f for f in folder.iterdir() if f.suffix in _SIDE_SUFFIXES))
    for file in side:
        check_regular(file, root)
    config = read_json(folder / CONFIG, root, "every HuggingFace checkpoint has one: is this the right folder?")
    _check_config(folder, config)
    if (folder / _GENERATION) in side:
        _check_generation(folder / _GENERATION, root)
    files, declared = _safetensors(folder, root)
    tensors: dict[str, TensorInfo] = {}
    if files:
        for file in files:
            _join(tensors, read_header(file, root))
        _check_tensors(folder, config, tensors, declared)
        return Checkpoint(folder, config, files, tensors, side, "safetensors", folder.name, str(folder))
    files = pickled.find(folder, root, allow_pickle)
    if not files:
        raise _nothing_to_read(folder)
    for file in files:
        pickled.check_container(file, root)
    return Checkpoint(folder, config, files, tensors, side, "pickle", folder.name, str(folder))


def _check_config(folder: Path, config: dict[str, Any]) -> None:
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{folder / CONFIG} has no `model_type`", "save it again with transformers")
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise UnsupportedError(f"{folder} is quantized already ({method or 'an unnamed method'})", _QUANTIZED_HINT)


def _check_generation(file: Path, root: Path) -> None:
    """transformers drops a damaged file without a word, and with it the tokens that end an answer."""
    eos = read_json(file, root, "").get("eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(number) is int and number >= 0 for number in ids):
        raise CheckpointError(f"{file} has eos_token_id {str(eos)[:80]!r}: a token's number or a list of them is read",
                              f"take {_GENERATION} from the original model")


def _safetensors(folder: Path, root: Path) -> tuple[tuple[Path, ...], dict[str, str]]:
    """The safetensors files, and what the index (if there is one) promises: tensor name -> file name."""
    if (folder / WEIGHTS).exists() or (folder / WEIGHTS).is_symlink():  # transformers, too, looks here first
        return (folder / WEIGHTS,), {}
    if not (folder / INDEX).exists():
        return (), {}
    return indexed(folder / INDEX, root)


def _join(tensors: dict[str, TensorInfo], more: dict[str, TensorInfo]) -> None:
    if twice := more.keys() & tensors.keys():
        name = min(twice)
        raise CheckpointError(
            f"{more[name].file} holds again what {tensors[name].file.name} holds: {names(twice)}",
            "files of two checkpoints lie in one folder: download it again into an empty one",
        )
    tensors |= more


def _check_tensors(
    folder: Path, config: dict[str, Any], tensors: dict[str, TensorInfo], declared: dict[str, str]
) -> None:
    weights = {n: t.dtype for n, t in tensors.items() if n.endswith("weight")}
    if coded := [f"{n} ({dtype})" for n, dtype in weights.items() if dtype not in _FLOATS]:
        raise UnsupportedError(f"{folder} holds codes in place of weights: {names(coded)}", _QUANTIZED_HINT)
    if not tensors:
        raise CheckpointError(f"{folder} has weight files without a tensor in them", "download it again")
    if absent := [n for n, f in declared.items() if n not in tensors or tensors[n].file.name != f]:
        raise CheckpointError(
            f"{folder / INDEX} promises tensors that their files don't hold: {names(absent)}",
            "download the checkpoint again: index and shards are of different versions",
        )
    layers = config.get("num_hidden_layers")
    if isinstance(layers, int) and layers > len(tensors):
        raise CheckpointError(
            f"{folder / CONFIG} says num_hidden_layers: {layers}, and the weights are {len(tensors)} tensors in all",
            f"is {CONFIG} from another model?",
        )


def _nothing_to_read(folder: Path) -> CheckpointError | UnsupportedError:
    found = sorted(f.name for f in folder.iterdir())
    if gguf := [n for n in found if n.endswith(".gguf")]:
        return CheckpointError(
            f"{folder} has weights only as {names(gguf)}", "give the path of the .gguf file itself: it holds all"
        )
    if other := [n for n in found if Path(n).suffix in _OTHER_WEIGHTS]:
        return UnsupportedError(f"{folder} has weights only as {names(other)}; EdgeForge reads safetensors",
                                pickled.CONVERT)
    strays = [n for n in found if n.endswith(".safetensors")]
    holds = f"; it holds {names(strays)}, which nothing names" if strays else ""
    alone = (f"; if {strays[0]} holds all of them under transformers' names, rename it to {WEIGHTS}"
             if len(strays) == 1 else "")
    return CheckpointError(
        f"{folder} has neither {WEIGHTS} nor {INDEX}{holds}",
        f"download the weights, or the index that belongs to the shards{alone}",
    )
