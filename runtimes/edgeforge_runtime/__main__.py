"""python -m edgeforge_runtime BUNDLE "prompt": one answer on the terminal."""

from __future__ import annotations

import argparse
import math
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import RunError, TextError
from .generate import Result, Text, generate
from .manifest import Manifest
from .sampler import Sampler
from .session import Session
from .text import TextCodec


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: answered; 1: could not; 2: the command line is wrong; 130: Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        _answer(options)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    return 0


def _answer(options: argparse.Namespace) -> None:
    folder: Path = options.bundle
    manifest = Manifest.load(folder)
    if manifest.tokenizer is None:
        raise TextError(f"{folder} has no tokenizer")
    codec = TextCodec(folder / manifest.tokenizer)
    if options.raw:
        prompt = codec.encode(options.prompt)
    else:
        prompt = codec.encode_chat([{"role": "user", "content": options.prompt}])
    sampler = Sampler(temperature=options.temperature, seed=secrets.randbits(32))
    with Session.open(folder, options.on) as session:
        for event in generate(session, codec, prompt, sampler, options.max_tokens):
            if isinstance(event, Text):
                print(event.text, end="", flush=True)
            else:
                print(flush=True)
                print(f"[{_account(event)}]", file=sys.stderr)


def _account(result: Result) -> str:
    speed = result.decode_tokens_per_second
    rate = "" if speed is None else f", {speed:.1f} tokens/s"
    return (
        f"{result.stop}: {result.prompt_tokens} tokens read in {result.prefill_seconds:.2f} s, "
        f"{len(result.tokens)} written{rate}, {result.restrides} restrides"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("edgeforge_runtime", description="Runs an EdgeForge bundle.")
    parser.add_argument("bundle", type=Path, help="folder with manifest.json")
    parser.add_argument("prompt", help="what the user says")
    parser.add_argument("--on", default="cpu", metavar="cpu|htp|trt", help="which of the bundle's targets (cpu)")
    parser.add_argument("--max-tokens", type=_count, default=256, help="most tokens to write (256)")
    parser.add_argument("--temperature", type=_temperature, default=0.0, help="0 is greedy (0)")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    return parser


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _temperature(text: str) -> float:
    if not 0 <= (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value


if __name__ == "__main__":
    sys.exit(main())
