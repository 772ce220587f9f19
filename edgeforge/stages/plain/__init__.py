"""The stages of a plain ONNX graph: the same passes, quantizer and compiler, without tokens, cache and parts."""
