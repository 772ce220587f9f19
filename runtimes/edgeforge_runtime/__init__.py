"""Runs EdgeForge bundles: numpy, a tokenizer and the accelerator's own library, nothing else.

with Session.open(folder) as session:
    codec = TextCodec(folder / manifest.tokenizer)
    for event in generate(session, codec, codec.encode("Once"), Sampler(), 64): ...
"""

__version__ = "0.1.0"
