from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from edgeforge import gates
from edgeforge.errors import EXIT_GATE, GateError
from edgeforge.gates import Check


@pytest.mark.parametrize(("value", "threshold", "sense", "passed"), [
    (30.0, 30.0, "at least", True), (29.999, 30.0, "at least", False), (math.inf, 30.0, "at least", True),
    (-math.inf, 30.0, "at least", False), (math.nan, 30.0, "at least", False),
    (0.02, 0.02, "at most", True), (0.021, 0.02, "at most", False), (math.inf, 0.02, "at most", False),
    (math.nan, 0.02, "at most", False), (math.nan, None, "at least", True), (-1e9, None, "at most", True),
])
def test_verdicts(value: float, threshold: float | None, sense: str, passed: bool) -> None:
    assert Check("x", value, "dB", threshold, sense).passed is passed  # type: ignore[arg-type]


def test_require_names_the_stage_and_every_failure_and_nothing_else() -> None:
    checks = [Check("logits", 12.345678, "dB", 30, note="row 7"), Check("KL", 0.5, "nats", 0.02, "at most"),
              Check("fine", 99, "dB", 30)]
    with pytest.raises(GateError) as caught:
        gates.require("quantize", checks, "take more bits")
    message = str(caught.value)
    assert "gate after quantize failed" in message
    assert "logits 12.35 dB (at least 30): row 7" in message
    assert "KL 0.5 nats (at most 0.02)" in message
    assert "fine" not in message
    assert "hint: take more bits" in message
    assert caught.value.exit_code == EXIT_GATE == 3


@pytest.mark.parametrize(("value", "said"), [
    (73_730, "73,730"), (73_730.0, "73,730"), (0, "0"), (1.0, "1"), (-40_000, "-40,000"), (12.345678, "12.35"),
    (116.94, "116.9"), (1234.56, "1,235"), (0.00001234, "1.234e-05"), (math.inf, "inf"), (-math.inf, "-inf"),
    (math.nan, "nan"),
])
def test_a_whole_number_is_said_whole(value: float, said: str) -> None:
    assert gates.figure(value) == said
    assert str(Check("x", value, "codes", 100_000)) == f"x {said} codes (at least 100,000)"


def test_require_is_silent_when_all_pass() -> None:
    gates.require("adapt", [Check("logits", 100, "dB", 60), Check("told", math.nan, "dB")], "")


def test_a_gate_by_name_is_what_the_recipe_says_now() -> None:
    asked = [Check("logits", 20, "dB", gate="quantize_db"),
             Check("KL", 0.1, "nats", sense="at most", gate="quantize_kl"),
             Check("ops", 0, "ops", 0, "at most"), Check("told", 5, "dB")]
    strict = gates.judged(asked, {"quantize_db": 30.0, "quantize_kl": 0.02})
    assert [(c.threshold, c.passed) for c in strict] == [(30, False), (0.02, False), (0, True), (None, True)]
    loose = gates.judged(strict, {"quantize_db": None, "quantize_kl": 0.1})
    assert [(c.threshold, c.passed) for c in loose] == [(None, True), (0.1, True), (0, True), (None, True)]


def test_saved_verdicts_come_back_with_their_infinities(tmp_path: Path) -> None:
    checks = [Check("a", math.inf, "dB", 60.0, note="n"), Check("b", -math.inf, "dB"),
              Check("c", 0.1, "x", 1, "at most", gate="shared_bytes")]
    gates.save(tmp_path, checks)
    assert gates.load(tmp_path) == checks
    text = (tmp_path / gates.FILE).read_text()
    assert "Infinity" not in text, "JSON has no infinities"
    json.loads(text, parse_constant=pytest.fail)
    gates.save(tmp_path, [Check("d", math.nan, "dB", 1)])
    assert not gates.load(tmp_path)[0].passed
