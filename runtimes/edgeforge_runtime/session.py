"""A conversation with one bundle: chunked prefill, decode, rewind, over any executor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from . import rope
from .cache import KvCache
from .codes import Array, Floats, decode
from .contract import check, logit_rows
from .errors import ContextOverflow, ManifestError, RunError
from .executors import Executor, open_executor
from .feeds import Feeder
from .manifest import LOGITS, Graph, Manifest, Target, Tensor, new_name, past_layer


class Session:
    """Reads tokens through a target's graphs and says what may come next.

    Attributes:
        context: most tokens that can be read. One more can be sampled after the last of them.
        calls: graph runs so far.
        reused: tokens that the last `prompt` found in the cache.
    """

    def __init__(
        self, manifest: Manifest, target: Target, executor: Executor, tables: rope.Tables
    ) -> None:
        """A session over graphs that are already loaded; `open` loads a bundle's.

        Args:
            tables: rotary tables, as rope.read gives them.

        Raises:
            ManifestError: the graphs do not fit the decode loop, or the tables do not fit the graphs.
        """
        check(manifest.model, target)
        tables = rope.needed(target.graphs, tables)
        self.model = manifest.model
        self.calls = 0
        self.reused = 0
        self._graphs = target.graphs
        self._executor = executor
        self._cache = KvCache(target.graphs, manifest.model)
        self._feeder = Feeder(manifest.model, tables)
        self._tokens: list[int] = []
        longest = max((g.cl - g.ar, g.cl) for g in target.graphs)[1]
        self.context = min(manifest.model.context, longest, *map(len, tables.values()))

    @classmethod
    def open(cls, folder: Path, on: str = "cpu", *, exact: bool = False, threads: int | None = None) -> Self:
        """Opens a bundle's target by its name in the manifest.

        Args:
            exact, threads: see open_executor.

        Raises:
            ManifestError: not a bundle, no such target, a file is missing or does not fit.
            ExecutorError: a graph does not load.
        """
        manifest = Manifest.load(folder)
        target = manifest.targets.get(on)
        if target is None:
            known = ", ".join(sorted(manifest.targets)) or "none"
            raise ManifestError(f"{folder} has no target {on!r}; it has {known}")
        check(manifest.model, target)
        tables = rope.read(folder / manifest.rope)
        executor = open_executor(target, folder, exact=exact, threads=threads)
        try:
            return cls(manifest, target, executor, tables)
        except BaseException:
            executor.close()
            raise

    @property
    def tokens(self) -> tuple[int, ...]:
        """Everything read so far."""
        return tuple(self._tokens)

    @property
    def restrides(self) -> int:
        """Cache moves so far; see KvCache."""
        return self._cache.restrides

    def prompt(self, ids: Sequence[int]) -> Floats:
        """Reads a whole conversation, keeping the cache of the longest prefix that was read before.

        Returns:
            The last token's logits, float32 [vocab_size].

        Raises:
            ContextOverflow: more ids than `context`; nothing was changed.
            RunError: no ids, or an id outside the vocabulary; nothing was changed.
        """
        self._check(ids)
        self._rewind(min(common_prefix(self._tokens, ids), len(ids) - 1))
        self.reused = len(self._tokens)
        return self._last(ids[self.reused :])

    def step(self, token: int) -> Floats:
        """Reads one more token and returns its logits; raises like `prompt`."""
        self._check([token], len(self._tokens))
        return self._last([token])

    def score(self, ids: Sequence[int]) -> Iterator[Floats]:
        """Reads ids from an empty cache, yielding each graph call's logits, float32 [tokens, vocab_size].

        Graphs that give only the last row's logits are passed over for narrower ones. Raises like `prompt`, and
        RunError when no graph gives every row.
        """
        self._check(ids)
        self.forget()
        return (self._decoded(tensor, rows) for tensor, rows in self._read(ids, every_row=True))

    def forget(self) -> None:
        """Empties the cache: the next `prompt` is read whole."""
        self._rewind(0)

    def close(self) -> None:
        """Frees the executor."""
        self._executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, ids: Sequence[int], behind: int = 0) -> None:
        if not ids:
            raise RunError("the prompt has no tokens")
        if behind + len(ids) > self.context:
            raise ContextOverflow(behind + len(ids), self.context)
        wrong = next((i for i in ids if not 0 <= i < self.model.vocab_size), None)
        if wrong is not None:
            raise RunError(f"token id {wrong} is outside the vocabulary of {self.model.vocab_size}")

    def _rewind(self, length: int) -> None:
        self._cache.rewind(length)
        del self._tokens[min(length, self._cache.length) :]

    def _last(self, ids: Sequence[int]) -> Floats:
        *_, (tensor, rows) = self._read(ids, every_row=False)
        return self._decoded(tensor, rows[-1])

    def _decoded(self, tensor: Tensor, rows: Array) -> Floats:
        return decode(tensor, rows[..., : self.model.vocab_size])

    def _read(self, ids: Sequence[int], *, every_row: bool) -> Iterator[tuple[Tensor, Array]]:
        """Runs graphs until all ids are read; yields the logit codes [rows, padded vocab] of each call.

        With a narrowest graph wider than 1, the last few tokens of the context find no slot in the
        cache. They are read, and read again together with what comes after them.
        """
        wanted = [*self._tokens, *ids]
        while len(self._tokens) < len(wanted):
            past = self._cache.length
            graph = self._choose(len(wanted) - past, past, every_row)
            chunk = wanted[past : past + graph.ar]
            rows = logit_rows(graph)
            first = 0 if rows == graph.ar else graph.ar - len(chunk)
            made = self._run(graph, chunk, first)
            fresh = past + len(chunk) - len(self._tokens)
            stored = min(len(chunk), self._cache.capacity - past)
            self._cache.append({n: made[new_name(n)] for n in self._cache.names}, first, stored)
            self._tokens += chunk[-fresh:]
            tensor = graph.boundary()[1][LOGITS]
            logits = made[LOGITS].reshape(rows, -1)
            yield tensor, logits[len(chunk) - fresh : len(chunk)] if rows == graph.ar else logits

    def _choose(self, count: int, past: int, every_row: bool) -> Graph:
        """The narrowest graph that takes all `count` tokens, else the widest; all with room for the past."""
        fits = [g for g in self._graphs if past <= g.cl - g.ar and (not every_row or logit_rows(g) == g.ar)]
        if not fits:
            raise RunError(f"no graph gives every row's logits behind {past} tokens")
        enough = [g for g in fits if g.ar >= count]
        return min(enough, key=lambda g: (g.ar, g.cl)) if enough else max(fits, key=lambda g: (g.ar, -g.cl))

    def _run(self, graph: Graph, chunk: Sequence[int], first: int) -> dict[str, Array]:
        past = self._cache.length
        feeds = self._feeder.feeds(graph, chunk, past, first)
        held = [n for n in graph.boundary()[0] if past_layer(n)]
        if held:
            views = self._cache.view(graph.cl - graph.ar)
            feeds |= {n: views[n] for n in held}
        self.calls += 1
        return self._executor.run(graph, feeds)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
