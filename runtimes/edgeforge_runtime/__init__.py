"""Runs EdgeForge bundles: numpy, a tokenizer and the accelerator's own library, nothing else.

    codec = TextCodec(folder / Manifest.load(folder).tokenizer)
    with Session.open(folder) as session:
        for event in generate(session, codec, codec.encode("Once"), Sampler(), max_tokens=64):
            print(event)
"""

__version__ = "0.1.0"
