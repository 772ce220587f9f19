"""A HuggingFace folder: opened and fingerprinted without torch, loaded as a torch module on demand.

`open_checkpoint` reads only config.json and the headers of the safetensors files, so that a recipe can be
checked, and an unchanged build skipped, before torch and transformers are imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from edgeforge.errors import CheckpointError, UnsupportedError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Beside the weights, everything that transformers reads to make a config, a tokenizer or a chat template.
_SIDE_SUFFIXES = {".json", ".jinja", ".txt", ".model", ".tiktoken"}
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".h5", ".msgpack", ".ckpt"}
_FLOATS = {"F64", "F32", "F16", "BF16"}
_QUANTIZED_HINT = "start from the float checkpoint that it was made of: quantizing twice only adds error"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as a safetensors header declares it; `dtype` in its spelling (F32, F16, BF16, I8...)."""

    shape: tuple[int, ...]
    dtype: str
    file: Path


@dataclass(frozen=True)
class Checkpoint:
    """A HuggingFace folder whose files are all there and whose headers can be read.

    Attributes:
        folder: absolute path.
        config: config.json as it stands.
        weight_files: the safetensors files, in the order of their names.
        tensors: name -> shape, dtype and file, from the headers; no tensor data is read.
    """

    folder: Path
    config: Mapping[str, Any]
    weight_files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]

    @property
    def name(self) -> str:
        """What reports call it."""
        return self.folder.name

    def fingerprint(self, cache: Path | None = None) -> str:
        """sha256 (hex) over names and contents of the config, tokenizer and weight files.

        Where the folder lies doesn't count. The hash of each file is remembered by path, size and times
        (mtime, and ctime because `cp -p` keeps an mtime over other contents), so that a second call
        takes milliseconds.

        Args:
            cache: the json file to remember in; by default one under the user's cache folder.
        """
        side = {f for f in self.folder.iterdir() if f.suffix in _SIDE_SUFFIXES and f.is_file()}
        files = sorted(side | set(self.weight_files))
        hashes = _file_hashes(files, cache or _default_cache())
        lines = [f"{hashes[f]}  {f.relative_to(self.folder).as_posix()}" for f in files]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Read a HuggingFace folder's config and weight headers.

    Raises:
        CheckpointError: the folder, its config or a weight file is missing, truncated or contradictory.
        UnsupportedError: the weights are there in a form that EdgeForge does not read.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise _not_a_folder(str(path), folder)
    folder = folder.absolute()
    if (folder / "adapter_config.json").is_file():
        raise UnsupportedError(
            f"{folder} holds a LoRA adapter",
            "merge it into its base (peft: `merge_and_unload()`, `save_pretrained()`) and give that folder",
        )
    config = _read_json(folder / CONFIG, "every HuggingFace checkpoint has one: is this the right folder?")
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{folder / CONFIG} has no `model_type`", "save it again with transformers")
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method", "an unnamed method")
        raise UnsupportedError(
            f"{folder} is quantized already ({method})",
            _QUANTIZED_HINT,
        )
    files, declared = _weight_files(folder)
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        header = _read_header(file)
        if twice := header.keys() & tensors.keys():
            raise CheckpointError(
                f"{file} holds again what {tensors[min(twice)].file.name} holds: {_names(twice)}",
                "files of two checkpoints lie in one folder: download it again into an empty one",
            )
        tensors |= header
    weights = {n: t.dtype for n, t in tensors.items() if n.endswith("weight")}
    if coded := [f"{n} ({dtype})" for n, dtype in weights.items() if dtype not in _FLOATS]:
        raise UnsupportedError(f"{folder} holds codes in place of weights: {_names(coded)}", _QUANTIZED_HINT)
    if not tensors:
        raise CheckpointError(f"{folder} has weight files without a tensor in them", "download it again")
    if absent := [n for n, f in declared.items() if n not in tensors or tensors[n].file.name != f]:
        raise CheckpointError(
            f"{folder / INDEX} promises tensors that their files don't hold: {_names(absent)}",
            "download the checkpoint again: index and shards are of different versions",
        )
    return Checkpoint(folder, config, files, tensors)


def load_model(checkpoint: Checkpoint) -> torch.nn.Module:
    """The checkpoint as a transformers causal LM: float32, eval mode, eager attention.

    Every tensor of the checkpoint goes into the model, and every parameter comes from the checkpoint or is
    tied to one that does. Tensors that the architecture itself declares to skip (`inv_freq`, extra
    multi-token heads) are the only exception.

    Raises:
        CheckpointError: tensors missing, left over, of another shape, or tied against the config.
        UnsupportedError: transformers knows no causal LM for this `model_type`.
    """
    import torch
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM

    folder, kind = checkpoint.folder, checkpoint.config["model_type"]
    if kind not in CONFIG_MAPPING or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedError(
            f"transformers has no causal language model for the model_type {kind!r} of {folder}",
            "a newer transformers may have it; EdgeForge does not run code that comes with a checkpoint",
        )
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # each config class has its own ways to be unhappy
        raise CheckpointError(
            f"{folder / CONFIG} makes no model: {_one_line(error)}",
            "take config.json from the original model",
        ) from error
    try:
        with _quiet_transformers():
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # so that they come back named; refused below
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise CheckpointError(
            f"transformers cannot load {folder}: {_one_line(error)}",
            "AutoModelForCausalLM.from_pretrained(FOLDER) prints its full report",
        ) from error
    _check_loaded(checkpoint, type(model).__name__, info)
    _check_tie(checkpoint, model)
    module: torch.nn.Module = model.eval()
    return module


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """The checkpoint's tokenizer, from the folder alone.

    Raises:
        CheckpointError: no tokenizer files, or damaged ones.
    """
    from transformers import AutoTokenizer

    # For some model types transformers makes up an empty tokenizer when the files are missing.
    if not any((checkpoint.folder / name).is_file() for name in _VOCABULARIES):
        raise CheckpointError(
            f"{checkpoint.folder} has no tokenizer", "copy tokenizer.json and tokenizer_config.json into it"
        )
    try:
        return AutoTokenizer.from_pretrained(checkpoint.folder, local_files_only=True)
    except Exception as error:  # `tokenizers` raises bare Exception for a damaged tokenizer.json
        raise CheckpointError(
            f"the tokenizer in {checkpoint.folder} cannot be read: {_one_line(error)}",
            "take the tokenizer files from the original model",
        ) from error


def _not_a_folder(given: str, path: Path) -> CheckpointError | UnsupportedError:
    if path.suffix == ".gguf" and path.is_file():
        return _gguf(given)
    if path.exists():
        return CheckpointError(f"{given} is a file", "give the folder that holds config.json and the weights")
    if _HUB_ID.fullmatch(given) and not path.parent.exists():
        return CheckpointError(
            f"there is no folder {given}; it looks like a hub id, and EdgeForge does not download",
            f"`hf download {given} --local-dir DIR`, then give DIR",
        )
    return CheckpointError(
        f"there is no folder {given}",
        "check the path (in a recipe: relative to the recipe's folder); nothing is downloaded from a hub",
    )


def _gguf(given: str) -> UnsupportedError:
    return UnsupportedError(
        f"{given} is a GGUF file, which EdgeForge does not read",
        "give the HuggingFace folder; transformers makes one from a GGUF "
        "(from_pretrained(..., quantization_config=GgufConfig(dequantize=True)), save_pretrained)",
    )


def _weight_files(folder: Path) -> tuple[tuple[Path, ...], dict[str, str]]:
    """The safetensors files, and what the index (if there is one) promises: tensor name -> file name."""
    if (folder / WEIGHTS).is_file():  # transformers, too, looks here first
        return (folder / WEIGHTS,), {}
    if (folder / INDEX).is_file():
        index = _read_json(folder / INDEX, "download it again")
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{folder / INDEX} has no `weight_map`", "download the checkpoint again")
        files = tuple(folder / name for name in sorted(set(weight_map.values())))
        if missing := [f.name for f in files if not f.is_file()]:
            raise CheckpointError(
                f"{folder} lacks {len(missing)} of {len(files)} weight files: {_names(missing)}",
                "download the missing files: the download stopped early",
            )
        return files, weight_map
    names = sorted(f.name for f in folder.iterdir())
    if gguf := [n for n in names if n.endswith(".gguf")]:
        raise _gguf(str(folder / gguf[0]))
    if other := [n for n in names if Path(n).suffix in _OTHER_WEIGHTS]:
        raise CheckpointError(
            f"{folder} has weights only as {_names(other)}; EdgeForge reads safetensors",
            "convert once: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER), "
            "and copy the tokenizer files",
        )
    strays = [n for n in names if n.endswith(".safetensors")]
    found = f"; it holds {_names(strays)}, which nothing names" if strays else ""
    raise CheckpointError(
        f"{folder} has neither {WEIGHTS} nor {INDEX}{found}",
        "download the weights, or the index that belongs to the shards",
    )


def _read_header(file: Path) -> dict[str, TensorInfo]:
    try:
        with safe_open(file, framework="numpy") as tensors:  # checks the file's length against the header
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (not a dict)
            return {n: TensorInfo(tuple(s.get_shape()), s.get_dtype(), file) for n, s in slices.items()}
    except (SafetensorError, OSError, ValueError) as error:
        with file.open("rb") as raw:
            is_pointer = raw.read(24) == b"version https://git-lfs."
        if is_pointer:
            raise CheckpointError(f"{file} is a git-lfs pointer, no weights", "`git lfs pull`") from error
        raise CheckpointError(
            f"{file} ({file.stat().st_size} bytes) is truncated or not a safetensors file: {error}",
            "download it again",
        ) from error


def _read_json(file: Path, hint: str) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {file}", hint) from error
    except ValueError as error:
        raise CheckpointError(f"{file} is not JSON: {error}", "download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a {type(value).__name__}, no object", "download it again")
    return value


def _check_loaded(checkpoint: Checkpoint, model: str, info: Mapping[str, Any]) -> None:
    """Refuse what transformers only warns about: tensors it made up, left out or reshaped."""
    folder, names = checkpoint.folder, checkpoint.tensors.keys()
    missing, unexpected = set(info["missing_keys"]), set(info["unexpected_keys"])
    if names <= unexpected:
        raise CheckpointError(
            f"none of the {len(names)} tensors in {folder} fits {model}: "
            f"the checkpoint holds {_names(names, 2)}; the model wants {_names(missing, 2)}",
            _prefix_hint(names, missing) or f"is {CONFIG} from another model?",
        )
    if mismatched := sorted(info["mismatched_keys"]):
        shapes = [f"{n} is {list(have)}, the config asks for {list(want)}" for n, have, want in mismatched]
        raise CheckpointError(
            f"{len(shapes)} tensors in {folder} have another shape than {CONFIG} says: {_names(shapes)}",
            f"is {CONFIG} from another size of the model, or the vocabulary resized without it?",
        )
    problems = []
    if missing:
        problems.append(f"{len(missing)} parameters of {model} are not in it: {_names(missing)}")
    if unexpected:
        problems.append(f"{len(unexpected)} of its tensors have no place in {model}: {_names(unexpected)}")
    if problems:
        untied_head = missing == {"lm_head.weight"} and not unexpected
        raise CheckpointError(
            f"{folder} does not match its {CONFIG}: " + "; ".join(problems),
            f"{CONFIG} does not say `tie_word_embeddings: true`: set it if embedding and head are one tensor"
            if untied_head
            else "weights and config must come from one and the same model",
        )


def _check_tie(checkpoint: Checkpoint, model: Any) -> None:
    """Two different tensors under a config that says tied: each reader would take another one."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = model.config.get_text_config().tie_word_embeddings
    if tied and head is not None and head.weight is not embedding.weight:
        raise CheckpointError(
            f"{checkpoint.folder / CONFIG} says that embedding and head are tied, but the checkpoint holds "
            "a different tensor for each",
            "set `tie_word_embeddings: false` if the head was trained apart, else drop the head's tensor",
        )


def _prefix_hint(names: Iterable[str], wanted: Iterable[str]) -> str:
    """A sentence when all the checkpoint's names are the model's with one prefix too many, else empty."""
    suffixes = tuple("." + w for w in wanted)
    prefixes = {n[: -len(s) + 1] for n in names for s in suffixes if n.endswith(s)}
    return f"the names carry the prefix {min(prefixes)!r}: save the inner model" if len(prefixes) == 1 else ""


def _names(names: Iterable[str], limit: int = 4) -> str:
    """The first few names, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - limit} more" if len(ordered) > limit else ""
    return ", ".join(ordered[:limit]) + more


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bar and no load report: `load_model` says itself what is wrong."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def _default_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "edgeforge" / "file-sha256.json"


def _file_hashes(files: Iterable[Path], cache: Path) -> dict[Path, str]:
    """sha256 (hex) of each file; the cache saves reading, and is never needed."""
    try:
        known = json.loads(cache.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if not isinstance(known, dict):
        known = {}
    hashes: dict[Path, str] = {}
    fresh: dict[str, list[Any]] = {}
    for file in files:
        key, before = str(file.resolve()), _stamp(file)
        entry = known.get(key)
        if isinstance(entry, list) and entry[:-1] == before:
            hashes[file] = entry[-1]
            continue
        with file.open("rb") as raw:
            hashes[file] = hashlib.file_digest(raw, "sha256").hexdigest()
        if _stamp(file) == before:  # else it is being written
            fresh[key] = [*before, hashes[file]]
    if fresh:
        kept = {key: entry for key, entry in known.items() if os.path.exists(key)}
        with contextlib.suppress(OSError):
            _write_whole(cache, json.dumps(kept | fresh, indent=0))
    return hashes


def _stamp(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _write_whole(file: Path, text: str) -> None:
    """Replace a file in one step: another build may be reading it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as scratch:
        scratch.write(text)
    os.replace(scratch.name, file)
