from __future__ import annotations

from pathlib import Path

import numpy as np

from edgeforge.export import record
from edgeforge.export.record import Call


def test_calls_come_back_bit_for_bit_with_slashes_in_names(tmp_path: Path) -> None:
    call = Call(8, {"model.layers.0/Add": np.array([[1, 65535]], np.uint16)}, {"logits": np.float32([0.1, np.nan])})
    record.save(tmp_path / "a" / "b", call)
    made = record.load(tmp_path / "a" / "b", 8)
    assert made.ar == 8
    for before, after in ((call.inputs, made.inputs), (call.outputs, made.outputs)):
        assert list(before) == list(after)
        for name, array in before.items():
            assert array.dtype == after[name].dtype
            np.testing.assert_array_equal(array, after[name])


def test_the_recorder_copies_inputs_because_the_cache_is_written_in_place() -> None:
    class Inner:
        closed = False

        def run(self, graph: object, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {"y": feeds["x"] + 1}

        def close(self) -> None:
            self.closed = True

    inner = Inner()
    recorder = record.Recorder(inner)
    x = np.zeros(2)
    from edgeforge_runtime.manifest import Graph
    assert recorder.run(Graph(4, 8, ()), {"x": x})["y"].tolist() == [1, 1]
    x += 5
    assert recorder.calls[0].inputs["x"].tolist() == [0, 0]
    assert recorder.calls[0].ar == 4
    recorder.close()
    assert inner.closed
