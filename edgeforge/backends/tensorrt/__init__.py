"""NVIDIA GPUs: ONNX -> one TensorRT engine with two optimization profiles, built without a GPU.

What TensorRT-RTX takes, refuses and unpacks was measured on 1.7.1 by its own layer dump. An engine cannot be run,
nor even read back, on a machine without an NVIDIA driver: what is known of it is asserted from what the builder said.
"""
