"""TensorRT's failures on the machine that builds. Source: our own builds, on TensorRT-RTX 1.7.1."""

from __future__ import annotations

from edgeforge.backends.faults import SEEN_HERE, Fault

_TRIED = "tried by hand on TensorRT-RTX 1.7.1"

FAULTS = (
    Fault("zero point", (), r"Non-zero zero point is not supported",
          "TensorRT multiplies symmetric codes only", "export weights and activations symmetric", SEEN_HERE),
    Fault("type of a newer GPU", (), r"contains HW-specific datatypes",
          "a number type that one of the target's GPUs lacks (fp8 before Ada, fp4 before Blackwell)",
          "leave that type out, or the older GPU", _TRIED),
    Fault("attention outputs", (), r"only supports Attention nodes with one output",
          "the Attention node hands out its cache; TensorRT wants the cache updated by TensorScatter", "build from the "
          "checkpoint with EdgeForge, which writes it so", _TRIED),
    Fault("no attention kernel", (), r"Attention operation was not supported by a dedicated kernel",
          "no fused kernel fits these head sizes: 16 to 256, in steps of 8, have one; others are padded first, and "
          "what is padded is not taken apart either", "take a model with such heads", SEEN_HERE),
    Fault("no driver", ("35",), r"CUDA driver version is insufficient|cudaError(?: code)? 35",
          "this call needs an NVIDIA driver; building for a named GPU does not", "name the GPU (target.chip); run the "
          "engine on the machine that has it", _TRIED),
)
