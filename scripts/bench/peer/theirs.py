"""Child process under an interpreter that has aimet-onnx: `python -m peer.theirs folder`. Knows nothing of ours.

Writes what SeqMSE chose: theirs.encodings (version 1.0.0, as shipped), raw.npz (real block steps [outputs, blocks]
as searched, before they became integers: the steps that its later layers were searched behind), and theirs.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from aimet_onnx import apply_seq_mse
from aimet_onnx.quantsim import QuantizationSimModel, set_lpbq_for_params

from peer import job, meter

_PRODUCTS = ("Conv", "MatMul", "Gemm")
_CONFIG = {
    "defaults": {"ops": {"is_output_quantized": "True"}, "params": {"is_quantized": "True", "is_symmetric": "True"},
                 "per_channel_quantization": "True"},
    "params": {"bias": {"is_quantized": "False"}}, "op_type": {}, "supergroups": [],
    "model_input": {"is_input_quantized": "True"}, "model_output": {}}


def main(folder: Path) -> None:
    settings = job.Job.load(folder)
    torch.set_num_threads(settings.threads)
    config = folder / "config.json"
    config.write_text(json.dumps(_CONFIG), encoding="utf-8")
    model = onnx.load(folder / "model.onnx")
    parameters = {i.name for i in model.graph.initializer}
    weights = [n.input[1] for n in model.graph.node if n.op_type in _PRODUCTS and n.input[1] in parameters]
    sim = QuantizationSimModel(model, param_type=f"int{job.BITS}", activation_type="int16",
                               config_file=str(config), providers=["CPUExecutionProvider"],
                               session_options_kwargs={"intra_op_num_threads": settings.threads})
    if settings.block is not None:
        set_lpbq_for_params(sim, job.BITS, settings.block, op_types=set(_PRODUCTS))
    feeds = job.load_feeds(folder)
    with meter.measured() as spent:
        apply_seq_mse(sim, feeds, num_candidates=job.CANDIDATES)
    job.save_spent(folder / "theirs.json", spent)
    np.savez(folder / "raw.npz", **{name: _steps(sim.qc_quantize_op_dict[name]) for name in weights})
    sim.compute_encodings(feeds[:1])  # SeqMSE's are frozen; an export wants activations too
    sim.export(str(folder), "theirs", export_model=False, encoding_version="1.0.0")


def _steps(quantizer: object) -> np.ndarray:
    """[outputs, blocks] of a convolution's weight."""
    steps = np.array([e.delta for e in quantizer.get_encodings()], np.float32)  # type: ignore[attr-defined]
    shape = quantizer._encoding_shape()  # type: ignore[attr-defined]
    return steps.reshape(shape[0], -1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
