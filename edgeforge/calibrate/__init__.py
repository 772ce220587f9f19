"""Text, ranges and Gram matrices: what quantization learns about a model from looking at it run."""
