"""Runs EdgeForge bundles: numpy, a tokenizer and the accelerator's own library, nothing else."""

__version__ = "0.1.0"
