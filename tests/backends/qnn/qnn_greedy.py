"""A plain greedy loop over the tiny model's parts, written from Genie's rules and nothing else.

Imported with CPU sessions, or run as a child on the HTP emulator:
``qnn_greedy.py ranges.json ids.json n wrapper...`` with all wrappers of the wide graph, then of AR-1;
prints the tokens as JSON on its last line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from qnn_tiny_llama import Array, Ranges, Tiny, codes, grid, rope_tables

EOS = 2
WIDE = 32


class Loop:
    """Past left-aligned, new rows first, everything unused at its zero point."""

    def __init__(self, model: Tiny, ranges: Ranges, sessions: dict[int, list[Any]]) -> None:
        self.m, self.ranges, self.sessions = model, ranges, sessions
        self.past = 0
        self.cache: dict[str, Array] = {}

    def step(self, ids: list[int], ar: int) -> Array:
        """Logit codes [len(ids), vocab] of up to AR new tokens."""
        m, n, room = self.m, len(ids), self.m.context - ar
        mask = np.zeros((1, 1, ar, m.context), np.uint16)
        for row in range(n):
            mask[0, 0, row, : self.past] = mask[0, 0, row, room : room + row + 1] = 65535
        positions = np.zeros(ar, int)
        positions[:n] = self.past + np.arange(n)
        values: dict[str, Array] = {"attention_mask": mask, "input_ids": np.full((1, ar), EOS, np.int32)}
        values["input_ids"][0, :n] = ids
        for name, table in zip(("cos", "sin"), rope_tables(m), strict=True):
            values[f"position_ids_{name}"] = codes(table[positions][None, None], grid(-1, 1, 16), np.uint16)
        for layer in range(m.layers):
            for name, axis, shape in (
                (f"past_key_{layer}", 3, (m.kv_heads, 1, m.head_dim, room)),
                (f"past_value_{layer}", 2, (m.kv_heads, 1, room, m.head_dim)),
            ):
                whole = np.full(shape, 128, np.uint8)
                if self.past:
                    whole[(slice(None),) * axis + (slice(self.past),)] = self.cache[name]
                values[f"{name}_in"] = whole
        for session in self.sessions[ar]:
            names = [o.name for o in session.get_outputs()]
            feeds = {i.name: values[i.name] for i in session.get_inputs()}
            values |= dict(zip(names, session.run(names, feeds), strict=True))
        for layer in range(m.layers):
            for name, axis in ((f"past_key_{layer}", 3), (f"past_value_{layer}", 2)):
                new = values[f"{name}_out"].take(range(n), axis)
                self.cache[name] = np.concatenate([self.cache[name], new], axis) if self.past else new
        self.past += n
        return values["logits"][0, 0, :n]

    def generate(self, ids: list[int], n: int) -> list[int]:
        for start in range(0, len(ids), WIDE):
            logits = self.step(ids[start : start + WIDE], WIDE)
        tokens: list[int] = []
        while len(tokens) < n:
            token = int(logits[-1].argmax())
            if token == EOS:
                break
            tokens.append(token)
            logits = self.step([token], 1)
        return tokens


def main(argv: list[str]) -> None:
    from edgeforge.backends.qnn import session as sessions

    ranges, ids = (json.loads(Path(a).read_text()) for a in argv[:2])
    n, wrappers = int(argv[2]), argv[3:]
    found = sessions.register()
    opened = [sessions.open_session(Path(w), found, {"soc_model": "57"}, {}) for w in wrappers]
    half = len(opened) // 2
    loop = Loop(Tiny(), ranges, {WIDE: opened[:half], 1: opened[half:]})
    print(json.dumps(loop.generate(ids, n)))


if __name__ == "__main__":
    main(sys.argv[1:])
