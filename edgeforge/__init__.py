"""EdgeForge: a HuggingFace LLM becomes measured NPU binaries on an ordinary machine."""

__version__ = "0.1.0"
