"""Complaints about unions: one sentence for a person, not one a member."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Discriminator, Tag, ValidationError

from edgeforge.complaints import complaints
from edgeforge.document import Document


class Graph(BaseModel):
    model_config = ConfigDict(extra="forbid")
    onnx: Path
    opset: int = 21


class Cloud(BaseModel):
    model_config = ConfigDict(extra="forbid")
    job: str
    retries: int


Tagged = Annotated[Annotated[Path, Tag("folder")] | Annotated[Graph, Tag("onnx")],
                   Discriminator(lambda raw: "onnx" if isinstance(raw, dict) else "folder")]


class Job(BaseModel):
    tagged: Tagged = Path()
    source: Path | Graph | Cloud | None = None
    many: list[int | Graph] = []
    only: Graph | Cloud | None = None


def _complaints(**data: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        Job.model_validate(data, strict=False)
    return [line.removeprefix("r.yaml: ") for line in complaints(caught.value, Job, Document(Path("r.yaml"), data))]


@pytest.mark.parametrize(("data", "said"), [
    ({"source": {"onnx": "f", "opset": "many"}}, ["source.opset: takes a whole number (got 'many')"]),
    ({"source": {"onnx": "f", "opst": 3}}, ["source.opst: unknown key; did you mean 'opset'?"]),
    ({"source": {"opset": 1}}, ["source.onnx: missing"]),
    ({"source": 5}, ["source: takes a path (got 5)"]),
    ({"source": [1]}, ["source: takes a path (got a list)"]),
    ({"only": 5}, ["only: takes keys and values (got 5)"]),
    ({"many": [1, {"onnx": 5}]}, ["many.1.onnx: takes a path (got 5)"]),
    ({"tagged": 5}, ["tagged: takes a path (got 5)"]),
    ({"tagged": {"opset": "x", "onxx": "f"}},
     ["tagged.onnx: missing", "tagged.onxx: unknown key; did you mean 'onnx'?",
      "tagged.opset: takes a whole number (got 'x')"]),
    ({"many": [1, "x"]}, ["many.1: takes a whole number (got 'x')"]),
    ({"many": 1, "source": {"job": "x", "retries": None}},
     ["many: takes a list (got 1)", "source.retries: nothing is written after the colon; it takes a whole number"]),
])
def test_a_union_is_one_complaint(data: dict[str, Any], said: list[str]) -> None:
    assert _complaints(**data) == said
