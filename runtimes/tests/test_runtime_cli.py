from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from edgeforge_runtime.__main__ import main
from tiny_models import Tiny
from tiny_tokenizers import byte_level, write


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The tiny model knows ids below 90: capital letters, but not the template's small ones."""
    folder = Tiny().write(tmp_path, tokenizer="tokenizer", eos=())
    write(folder / "tokenizer", byte_level(), eos_token=None, chat_template="{{ messages[0].content }}!")
    return folder


def test_answers(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(bundle), "ABC", "--max-tokens", "5"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert out.strip()
    wanted = r"\[max_tokens: 4 tokens read in \d+\.\d\d s, 5 written, \d+\.\d tokens/s, 1 restrides\]\n"
    assert re.fullmatch(wanted, err)


def test_raw_leaves_the_template_out(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(bundle), "ABC", "--max-tokens", "1", "--raw"]) == 0
    assert "3 tokens read" in capsys.readouterr().err


def test_temperature(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Greedy says the same twice; sampling draws anew every time."""
    outs = []
    for temperature in ("0", "0", "30", "30"):
        assert main([str(bundle), "ABC", "--max-tokens", "20", "--temperature", temperature]) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1]
    assert len(set(outs)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "x"], "nowhere holds no manifest.json"),
        (["BUNDLE", "x", "--on", "htp"], "has no target 'htp'"),
        (["BUNDLE", "A" * 40], "the prompt has 41 tokens, 9 more than the context of 32"),
        (["BUNDLE", "", "--raw"], "the prompt has no tokens"),
        (["BUNDLE", "small letters"], "outside the vocabulary of 90"),
    ],
)
def test_failures_are_messages(
    bundle: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([a.replace("BUNDLE", str(bundle)) for a in arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err


def test_no_tokenizer(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer": None}))
    assert main([str(bundle), "x"]) == 1
    assert "has no tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["", "b", "b p --max-tokens 0", "b p --temperature nan", "b p --x"])
def test_wrong_command_lines(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments.split())
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err
