"""What moves elements, against onnxruntime and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_graphs import both, check, floats, integers

from edgeforge.errors import UnsupportedError
from edgeforge.torch_ops import evaluate

X = floats(2, 3, 4, 5)


def test_views() -> None:
    check("Transpose", [X])
    check("Transpose", [X], perm=[0, 3, 1, 2])
    for target in ([6, 20], [0, -1], [0, 0, 20], [-1]):
        check("Reshape", [X, integers(*target)])
    check("Reshape", [floats(0, 3), integers(3, 0)], allowzero=1)
    for axis in (0, 1, 2, 4, -1):
        check("Flatten", [X], axis=axis)
    check("Squeeze", [floats(1, 3, 1, 2)])
    check("Squeeze", [floats(1, 3, 1, 2), integers(-2)])
    check("Squeeze", [floats(1, 3, 1, 2), integers(0, 2)])
    for axes in ([0], [-1], [2, 0], [-1, 0], [1, 5]):
        check("Unsqueeze", [X, integers(*axes)])


def test_views_stay_views() -> None:
    """No copy where torch needs none."""
    x = torch.randn(1, 2, 3, 4)
    for op, more, attributes in (("Transpose", [], {"perm": [0, 2, 1, 3]}), ("Reshape", [[2, 12]], {}),
                                 ("Slice", [[1], [3], [2]], {}), ("Unsqueeze", [[0]], {}), ("Squeeze", [[0]], {}),
                                 ("Split", [[1, 1]], {"axis": 1}), ("Expand", [[5, 2, 3, 4]], {})):
        names = [f"i{i}" for i in range(len(more) + 1)]
        proto = onnx.helper.make_node(op, names, ["a", "b"] if op == "Split" else ["a"], **attributes)
        made = evaluate(ir.from_proto(proto), [x, *map(torch.tensor, more)])
        assert made[-1].untyped_storage().data_ptr() == x.untyped_storage().data_ptr(), op


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_slices(data: st.DataObject) -> None:
    """"To the end" is a huge bound forwards, a hugely negative one backwards, as the standard says."""
    axes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))
    steps = [data.draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in axes]
    starts = [data.draw(st.integers(-8, 8)) for _ in axes]
    stops = [data.draw(st.integers(-8, 8) | st.sampled_from([2**31 - 1, 2**63 - 1] if step > 0 else [-2**31 + 1]))
             for step in steps]
    signed = [a - 4 if data.draw(st.booleans()) else a for a in axes]
    check("Slice", [X, *(integers(*v) for v in (starts, stops, signed, steps))])


def test_slice_without_axes_and_steps() -> None:
    check("Slice", [X, integers(0, 1), integers(1, 3)])


def test_split_and_concat() -> None:
    check("Split", [X, integers(1, 3, 1)], outputs=3, axis=-1)
    check("Split", [X], outputs=2, axis=2, num_outputs=2)
    check("Split", [X], outputs=3, axis=-1, num_outputs=3)
    check("Concat", [X, floats(2, 1, 4, 5, seed=1), X], axis=1)
    check("Concat", [np.arange(3), np.arange(2)], axis=-1)


def test_repetition() -> None:
    for target in ([2, 3, 4], [3, 1], [1], [5, 1, 1, 1]):
        check("Expand", [floats(3, 1), integers(*target)])
    check("Tile", [floats(2, 3), integers(2, 3)])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("axis", [0, 2, -1])
def test_gather(axis: int, dtype: Any) -> None:
    for indices in (1, -1, [0, 2, 1], [[0, -1], [1, -2]]):
        check("Gather", [X[:, :, :, :3] if axis else floats(3, 4), np.array(indices, dtype)], axis=axis)


@pytest.mark.parametrize("to", [np.float32, np.int32, np.int64, np.bool_])
@pytest.mark.parametrize("start", [np.float32, np.int32, np.int64, np.bool_])
def test_casts(start: Any, to: Any) -> None:
    x = np.array([-2.7, -0.5, 0, 0.5, 2.7], np.float32).astype(start)
    check("Cast", [x], to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to)))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(mode: str) -> None:
    check("Pad", [X, integers(0, 0, 1, 2, 0, 1, 2, 3)], mode=mode)
    check("Pad", [X, integers(2, 1, 0, 3), None, integers(-1, 2)], mode=mode)
    check("Pad", [X, integers(0, 0, -1, 0, 0, 0, 0, -2)], mode=mode)
    if mode == "constant":
        check("Pad", [X, integers(1, 1), np.float32(2.5).reshape(()), integers(0)])
        check("Pad", [np.arange(4, dtype=np.int32), integers(1, 2)])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_pixels_and_channels(mode: str) -> None:
    check("DepthToSpace", [floats(2, 12, 3, 4)], blocksize=2, mode=mode)
    check("SpaceToDepth", [floats(2, 3, 4, 6)], blocksize=2)


PLACES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]
SIZES = [(8, 10), (4, 5), (3, 7), (2, 3), (1, 1), (9, 4)]


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_to_sizes_and_by_scales(mode: str, places: str) -> None:
    for size in SIZES:
        check("Resize", [X, None, None, integers(2, 3, *size)], mode=mode, tolerance=1e-5,
              coordinate_transformation_mode=places)
    for scales in ((2, 2), (1.5, 0.6), (0.5, 3)):
        check("Resize", [X, None, np.float32([1, 1, *scales])], mode=mode, tolerance=1e-5,
              coordinate_transformation_mode=places)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("places", PLACES[:4])
def test_resize_to_the_nearest(rounding: str, places: str) -> None:
    for size in SIZES:
        check("Resize", [X, None, None, integers(2, 3, *size)], nearest_mode=rounding,
              coordinate_transformation_mode=places)


def test_resize_by_a_scale_that_float32_rounds() -> None:
    """10 * 0.7 is 7 in float32, where both numbers are, and 6.9999999 beyond it."""
    check("Resize", [floats(1, 1, 10, 10), None, np.float32([1, 1, 0.7, 0.3])], mode="linear", tolerance=1e-5)


def test_resize_of_some_axes_and_cubic_borders() -> None:
    check("Resize", [X, None, np.float32([2, 1.5])], mode="linear", axes=[2, 3], tolerance=1e-5)
    check("Resize", [X, None, np.float32([1, 1, 2, 1.5])], mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5,
          tolerance=1e-5)


@pytest.mark.parametrize(("attributes", "words"), [
    ({"antialias": 1, "mode": "linear"}, "antialias"),
    ({"coordinate_transformation_mode": "tf_crop_and_resize"}, "tf_crop_and_resize"),
    ({"keep_aspect_ratio_policy": "not_larger"}, "not_larger")])
def test_resize_in_other_ways_is_refused(attributes: dict[str, Any], words: str) -> None:
    roi = np.float32([0, 0, 0, 0, 1, 1, 1, 1])
    with pytest.raises(UnsupportedError, match=f"y0: Resize with .*{words}"):
        both("Resize", [X, roi, None, integers(2, 3, 6, 6)], **attributes)
