"""EdgeForge's weight search beside aimet-onnx's SeqMSE: what scripts/bench/ptq.py is made of.

Two child processes search the same cut graph on the same samples: `ours` (this interpreter) and `theirs` (one that has
aimet-onnx and nothing of EdgeForge). `job` is what both read, `meter` how both are timed.
"""
