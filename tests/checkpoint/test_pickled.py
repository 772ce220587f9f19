"""Weights as pickles: only on request, only tensors, and never a line of their code."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import DOWN, HEAD, refusal, tiny
from safetensors.torch import load_file

from edgeforge.checkpoint import load_model, open_checkpoint

NAME = "pytorch_model.bin"


@pytest.fixture
def state(folder: Path) -> dict[str, torch.Tensor]:
    """The weights, no longer in the folder as safetensors."""
    found = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    return found


def refused(folder: Path) -> str:
    """With the flag: refused at the latest when loading; never a traceback."""
    return refusal(lambda: load_model(open_checkpoint(folder, allow_pickle=True))).message


class TestAsked:
    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize("name", [NAME, "model.pt", "pytorch_model.pt"])
    def test_loads_as_the_safetensors_do(
        self, folder: Path, state: dict[str, torch.Tensor], name: str, zipped: bool
    ) -> None:
        torch.save(state, folder / name, _use_new_zipfile_serialization=zipped)
        (folder / "training_args.bin").write_bytes(b"whatever a trainer leaves")
        checkpoint = open_checkpoint(folder, allow_pickle=True)
        assert (checkpoint.format, checkpoint.weight_files) == ("pickle", (folder / name,))
        model, original = load_model(checkpoint), tiny().eval()
        original.set_attn_implementation("eager")
        ids = torch.arange(7)[None]
        assert torch.equal(model(ids).logits, original(ids).logits)
        assert model.generation_config.eos_token_id == original.generation_config.eos_token_id

    def test_shards(self, folder: Path, state: dict[str, torch.Tensor]) -> None:
        weight_map = {}
        for i, name in enumerate(sorted(state)):
            weight_map[name] = f"pytorch_model-0000{i % 2 + 1}-of-00002.bin"
        for file in set(weight_map.values()):
            torch.save({n: t for n, t in state.items() if weight_map[n] == file}, folder / file)
        (folder / f"{NAME}.index.json").write_text(json.dumps({"weight_map": weight_map}))
        checkpoint = open_checkpoint(folder, allow_pickle=True)
        assert len(checkpoint.weight_files) == 2
        assert torch.equal(load_model(checkpoint).state_dict()[DOWN], state[DOWN])
        (folder / "pytorch_model-00002-of-00002.bin").unlink()
        assert "lacks 1 of 2" in refused(folder)

    def test_safetensors_come_first(self, folder: Path) -> None:
        (folder / NAME).write_bytes(b"not even read")
        assert open_checkpoint(folder, allow_pickle=True).format == "safetensors"

    def test_the_fingerprint_is_of_the_file(self, folder: Path, state: dict[str, torch.Tensor], cache: Path) -> None:
        torch.save(state, folder / NAME)
        before = open_checkpoint(folder, allow_pickle=True).fingerprint(cache)
        state[DOWN][0, 0] += 1
        torch.save(state, folder / NAME)
        assert open_checkpoint(folder, allow_pickle=True).fingerprint(cache) != before

    def test_what_does_not_fit_is_named(self, folder: Path, state: dict[str, torch.Tensor]) -> None:
        torch.save({n: t for n, t in state.items() if n != DOWN}, folder / NAME)
        assert DOWN in refused(folder)
        torch.save(state | {"foo.weight": torch.ones(2)}, folder / NAME)
        assert "foo.weight" in refused(folder)
        torch.save({f"wrapped.{n}": t for n, t in state.items()}, folder / NAME)
        assert "none of the" in refused(folder)
        torch.save(state | {DOWN: torch.ones(3, 3)}, folder / NAME)
        assert f"{DOWN} is [3, 3]" in refused(folder)
        torch.save(state | {DOWN: state[DOWN] * float("nan")}, folder / NAME)
        assert "NaN" in refused(folder)


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


class TestCode:
    @pytest.fixture
    def mark(self, tmp_path: Path) -> Path:
        return tmp_path / "ran"

    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize("wrap", [lambda e, s: e, lambda e, s: s | {HEAD: e}, lambda e, s: [e]],
                             ids=["alone", "among tensors", "in a list"])
    def test_is_refused_not_run(
        self, folder: Path, state: dict[str, torch.Tensor], mark: Path, zipped: bool, wrap: Callable[..., Any]
    ) -> None:
        torch.save(wrap(Evil(f"touch {mark}"), state), folder / NAME, _use_new_zipfile_serialization=zipped)
        said = refused(folder)
        assert "system" in said
        assert "add_safe_globals" not in said, "torch's own advice"
        assert not mark.exists()

    def test_nor_from_a_bare_pickle(self, folder: Path, state: dict[str, torch.Tensor], mark: Path) -> None:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            (folder / NAME).write_bytes(pickle.dumps(Evil(f"touch {mark}"), protocol))
            refused(folder)
            assert not mark.exists()

    def test_not_even_opened_without_the_flag(self, folder: Path, state: dict[str, torch.Tensor], mark: Path) -> None:
        torch.save(Evil(f"touch {mark}"), folder / NAME)
        error = refusal(lambda: open_checkpoint(folder))
        assert "--allow-pickle" in error.hint
        assert "save_pretrained" in error.hint


def member(name: str, content: bytes = b"x", how: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", how) as archive:
        archive.writestr(name, content)
    return made.getvalue()


@pytest.mark.usefixtures("state")
class TestContainer:
    @pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "a/../../evil", "..\\evil", "C:evil", "\\evil"])
    def test_zip_slip(self, folder: Path, name: str) -> None:
        (folder / NAME).write_bytes(member(name))
        assert "paths out of it" in refused(folder)
        assert not (folder.parent.parent / "evil").exists()

    def test_a_bomb(self, folder: Path) -> None:
        (folder / NAME).write_bytes(member("archive/data.pkl", bytes(1 << 24), zipfile.ZIP_DEFLATED))
        assert "packed members" in refused(folder)

    def test_a_size_that_is_not_there(self, folder: Path) -> None:
        raw = bytearray(member("archive/data.pkl"))
        central = raw.index(b"PK\x01\x02")
        raw[central + 24 : central + 28] = struct.pack("<I", 1 << 31)
        (folder / NAME).write_bytes(raw)
        assert "declares" in refused(folder)

    def test_two_members_of_one_name(self, folder: Path) -> None:
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr("archive/data.pkl", b"x")
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr("archive/data.pkl", b"y")
        (folder / NAME).write_bytes(made.getvalue())
        assert "two members" in refused(folder)

    @pytest.mark.parametrize("content", [b"", b"\x80", b"\x80\x02.", b"PK\x03\x04", b"hello", bytes(1000),
                                         b"version https://git-lfs.github.com/spec/v1\n"], ids=repr)
    def test_no_torch_file(self, folder: Path, content: bytes) -> None:
        (folder / NAME).write_bytes(content)
        assert NAME in refused(folder)


class TestContent:
    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
    def test_truncated(self, folder: Path, state: dict[str, torch.Tensor], part: float, zipped: bool) -> None:
        torch.save(state, folder / NAME, _use_new_zipfile_serialization=zipped)
        whole = (folder / NAME).read_bytes()
        (folder / NAME).write_bytes(whole[: int(len(whole) * part)])
        assert NAME in refused(folder)

    @pytest.mark.parametrize(
        ("value", "wanted"),
        [
            ([1, 2], "holds a list"),
            ({}, "holds a dict"),
            (torch.ones(2), "holds a Tensor"),
            ({"model": {"a": torch.ones(2)}}, "model is a dict"),
            ({1: torch.ones(2)}, "key of type int"),
            ({"a": torch.ones(1).expand(1 << 40)}, "claims [1099511627776]"),  # a terabyte in a few bytes
            ({"a": torch.ones(3).to_sparse()}, "a is a Tensor, not a plain tensor"),
            ({"a": torch.ones(3, device="meta")}, "claims"),
        ],
        ids=str,
    )
    def test_not_tensors_by_name(
        self, folder: Path, state: dict[str, torch.Tensor], value: object, wanted: str
    ) -> None:
        torch.save(value, folder / NAME)
        assert wanted in refused(folder)

    def test_which_file_it_is_is_not_guessed(self, folder: Path, state: dict[str, torch.Tensor]) -> None:
        torch.save(state, folder / "epoch3.pt")
        torch.save(state, folder / "epoch4.pt")
        assert "epoch3.pt, epoch4.pt" in refused(folder)
