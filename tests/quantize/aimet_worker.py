"""Child process under an interpreter that has aimet-onnx: `python aimet_worker.py folder`. Knows nothing of ours.

Reads model.onnx, feeds.npz and ours-<version>.encodings; writes what AIMET answers with each (ours-<version>.npz),
and its own min-max encodings in every version with its own answer (theirs-<version>.encodings, theirs.npz).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
from aimet_onnx.common.onnx._utils import _convert_200_to_210
from aimet_onnx.quantsim import (
    QuantizationSimModel,
    load_encodings_to_sim,
    set_blockwise_quantization_for_weights,
    set_lpbq_for_params,
)

BLOCK = 16


def sim(folder: Path) -> QuantizationSimModel:
    """4-bit weights: blocks of 16 in convolutions (LPBQ) and in the MatMul named `blocks`, else per channel."""
    config = folder / "config.json"
    config.write_text(json.dumps({
        "defaults": {"ops": {"is_output_quantized": "True"}, "params": {"is_quantized": "True", "is_symmetric": "True"},
                     "per_channel_quantization": "True"},
        "params": {"bias": {"is_quantized": "False"}}, "op_type": {}, "supergroups": [],
        "model_input": {"is_input_quantized": "True"}, "model_output": {}}))
    made = QuantizationSimModel(onnx.load(folder / "model.onnx"), param_type="int4", activation_type="int16",
                                config_file=str(config), providers=["CPUExecutionProvider"])
    set_lpbq_for_params(made, 4, BLOCK, op_types="Conv")
    others = [n.name for n in made.model.nodes() if n.op_type == "MatMul" and n.name != "blocks"]
    set_blockwise_quantization_for_weights(made, ("MatMul",), 4, True, BLOCK, nodes_to_exclude=others)
    return made


def main(folder: Path) -> None:
    with np.load(folder / "feeds.npz") as archive:
        feeds = dict(archive)
    for path in sorted(folder.glob("ours-*.encodings")):
        loaded = sim(folder)
        load_encodings_to_sim(loaded, str(path), strict=False)
        np.savez(path.with_suffix(".npz"), y=loaded.session.run(None, feeds)[0])
    own = sim(folder)
    own.compute_encodings([feeds])
    np.savez(folder / "theirs.npz", y=own.session.run(None, feeds)[0])
    for version in ("1.0.0", "2.0.0"):
        own.export(str(folder), f"theirs-{version}", encoding_version=version)
    # aimet-onnx 2.42.0 exports no 2.1.0 (aimet-torch does), and has this function for its QDQ print.
    newest = json.loads((folder / "theirs-2.0.0.encodings").read_text())
    newest |= {"version": "2.1.0", "encodings": [_convert_200_to_210(e, (48, 32, 1, 1)) for e in newest["encodings"]]}
    (folder / "theirs-2.1.0.encodings").write_text(json.dumps(newest))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
