"""Qualcomm HTP through the pip wheel onnxruntime-qnn: compile, read back, emulate, and drive Genie.

Nothing here loads a vendor library into the calling process: each one runs in a child
(``*_worker.py``), because a bad binary or graph crashes its host. Import the modules directly; this
file stays empty so that the children start fast.
"""
