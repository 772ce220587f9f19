"""A hub id: told from a path, fetched once, pinned, and every way in which it cannot be had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hub_server
import pytest
from checkpoints import refusal, shard
from hub_server import COMMIT, Hub

from edgeforge.checkpoint import locate, open_checkpoint
from edgeforge.checkpoint.hub import HubId, parse

CODE = """
import json, sys
from edgeforge.checkpoint import open_checkpoint
from edgeforge.errors import CheckpointError
try:
    c = open_checkpoint(sys.argv[1])
    print(json.dumps({"source": c.source, "revision": c.revision, "name": c.name, "folder": str(c.folder),
                      "tensors": len(c.tensors), "fingerprint": c.fingerprint(),
                      "torch": "torch" in sys.modules}))
except CheckpointError as e:
    print(json.dumps({"message": e.message, "hint": e.hint}))
"""


@pytest.fixture
def hub(folder: Path) -> Iterator[Hub]:
    evil = {"pytorch_model.bin": b"pickle", "modeling_evil.py": b"raise SystemExit", "onnx/model.onnx": b"x",
            "original/params.json": b"{}", "README.md": b"# tiny", "tf_model.h5": b"h5"}
    with hub_server.serve(folder, **evil) as running:
        yield running


def ask(model: str, home: Path, address: str, **environment: str) -> dict[str, Any]:
    """open_checkpoint in a process of its own: huggingface_hub reads its environment once."""
    settings = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(home), "XDG_CACHE_HOME": str(home / "x"),
                             "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": ""} | environment
    done = subprocess.run([sys.executable, "-c", CODE, model], capture_output=True, text=True, timeout=120,
                          env=settings, cwd=home.parent, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class TestFetch:
    def test_what_is_fetched_and_what_is_not(self, hub: Hub, folder: Path, tmp_path: Path) -> None:
        found = ask("org/tiny", tmp_path / "hf", hub.address)
        assert (found["source"], found["revision"], found["name"]) == ("org/tiny", COMMIT, "tiny")
        assert found["fingerprint"] == open_checkpoint(folder).fingerprint(tmp_path / "cache.json")
        assert not found["torch"]
        got = {p.name for p in Path(found["folder"]).iterdir()}
        assert got == {"config.json", "generation_config.json", "model.safetensors"}
        assert not [a for a in hub.asked if "evil" in a or ".bin" in a or "onnx" in a]

    def test_nothing_is_fetched_twice_and_a_pinned_one_needs_no_network(self, hub: Hub, tmp_path: Path) -> None:
        home = tmp_path / "hf"
        first = ask(f"org/tiny@{COMMIT}", home, hub.address)
        hub.asked.clear()
        assert ask(f"org/tiny@{COMMIT}", home, hub.address) == first
        assert hub.asked == []
        assert ask("org/tiny@v1", home, hub.address) == first
        assert not [a for a in hub.asked if a.startswith("GET /org/tiny/resolve")]
        offline = ask(f"org/tiny@{COMMIT}", home, "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
        assert offline == first

    def test_shards(self, folder: Path, tmp_path: Path) -> None:
        shard(folder)
        with hub_server.serve(folder) as hub:
            assert ask("org/tiny", tmp_path / "hf", hub.address)["tensors"] == 20

    def test_pickles_alone_are_not_fetched(self, folder: Path, tmp_path: Path) -> None:
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        with hub_server.serve(folder) as hub:
            found = ask("org/tiny@main", tmp_path / "hf", hub.address)
            assert "org/tiny@main on the hub holds no model*.safetensors" in found["message"]
            # --allow-pickle alone would change nothing
            assert "hf download org/tiny --revision main --local-dir DIR" in found["hint"]
            assert "--allow-pickle" in found["hint"]
            assert not [a for a in hub.asked if ".bin" in a]


class TestRefused:
    def test_no_such_repository(self, hub: Hub, tmp_path: Path) -> None:
        found = ask("org/tinny", tmp_path / "hf", hub.address)
        assert "there is no org/tinny" in found["message"]
        assert "hf auth login" in found["hint"]

    def test_no_such_revision(self, hub: Hub, tmp_path: Path) -> None:
        assert "no revision 'v9'" in ask("org/tiny@v9", tmp_path / "hf", hub.address)["message"]

    def test_gated(self, hub: Hub, tmp_path: Path) -> None:
        found = ask("org/gated", tmp_path / "hf", hub.address)
        assert "org/gated on the hub is gated" in found["message"]
        assert f"{hub.address}/org/gated" in found["hint"]

    def test_a_hub_that_fails(self, hub: Hub, tmp_path: Path) -> None:
        assert "org/down" in ask("org/down", tmp_path / "hf", hub.address)["message"]

    @pytest.mark.parametrize(("address", "offline", "why"), [
        ("http://127.0.0.1:9", "1", "HF_HUB_OFFLINE is set"), ("http://127.0.0.1:9", "0", "the hub cannot be reached"),
    ])
    def test_offline(self, tmp_path: Path, address: str, offline: str, why: str) -> None:
        found = ask("org/tiny@v1", tmp_path / "hf", address, HF_HUB_OFFLINE=offline)
        assert why in found["message"]
        assert "org/tiny@v1" in found["message"]
        assert "hf download org/tiny --revision v1 --local-dir" in found["hint"]

    def test_a_download_that_stops_leaves_no_checkpoint(self, hub: Hub, tmp_path: Path) -> None:
        hub.cut = "model.safetensors"
        home = tmp_path / "hf"
        assert "org/tiny" in ask("org/tiny", home, hub.address)["message"]
        found = ask("org/tiny", home, hub.address, HF_HUB_OFFLINE="1")
        assert "only a part of it" in found["message"]
        hub.cut = ""
        assert ask("org/tiny", home, hub.address)["tensors"] == 20


class TestName:
    @pytest.mark.parametrize(("text", "wanted"), [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", HubId("HuggingFaceTB/SmolLM2-135M-Instruct", None)),
        ("org/name@refs/pr/3", HubId("org/name", "refs/pr/3")),
        (f"org/name@{COMMIT}", HubId("org/name", COMMIT)),
        ("name", None), ("a/b/c", None), ("../models/x", None), ("/abs/olute", None), ("~/x", None), ("org/", None),
        ("org/name@", None), ("org/na me", None), ("./x", None),
    ])
    def test_form(self, text: str, wanted: HubId | None) -> None:
        assert parse(text) == wanted

    def test_what_lies_there_wins(self, tmp_path: Path) -> None:
        named = Path("org/name")
        assert locate(named, tmp_path / named) == named
        (tmp_path / "org").mkdir()
        assert locate(named, tmp_path / named) == tmp_path / named  # a folder of models: misspelt, no hub's id
        (tmp_path / "org" / "name").mkdir()
        assert locate(named, tmp_path / named) == tmp_path / named
        assert locate(Path("model.gguf"), tmp_path / "model.gguf") == tmp_path / "model.gguf"

    def test_neither(self, tmp_path: Path) -> None:
        error = refusal(lambda: open_checkpoint(tmp_path / "org" / "name"))
        assert "org/name@revision" in error.hint
