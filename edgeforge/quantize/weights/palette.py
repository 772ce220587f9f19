"""Weights as entries of small tables, each shared by a group of output channels: what the Neural Engine expands as it
reads. The tables follow the text, not the weights' distribution.

A group's weights w (one column an output) become t[c]; an error e of a column costs e' H e with H = X'X. Tables start
from k-means in one dimension in which each weight counts by its input's energy (SqueezeLLM, Kim et al., arXiv
2306.07629), as far as inputs still open cannot mend its error: 1 / U_ii^2 of GPTQ, which is what an error costs there.
Then codes are chosen with errors passed on (see gptq.py, rounding into the table), and tables and codes are improved in
turn: the best table for given codes solves least squares under the whole H (GPTVQ, van Baalen et al., arXiv 2402.15319)
by conjugate gradients, whose step costs one product with H; the best code of one input for a given table and all other
codes is one rounding (refine.py). Every group keeps the best that it has seen, so more rounds never lose.

Outputs of SmolLM2's layer 14 on other text (scripts/bench/coreml.py), tables for 16 outputs: from evenly spaced and
evenly filled starts, counted by the diagonal of H, 22.2 dB with 4 bits and 31.1 with 6; from a start as dense as theory
wants it 23.5 and 35.3; counted by 1 / U_ii^2 23.8 and 35.6.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from edgeforge.errors import EdgeForgeError
from edgeforge.quantize.weights.gram import Gram

_OUTPUTS = 8192
"""outputs treated at a time, so that a head fits in memory: each group is a problem of its own"""
_LLOYD = 40
_BINS, _SMOOTH = 1024, 9
"""of a histogram that says how dense values are, and how many of its bins are taken together"""
_CONJUGATE = 3
_BLOCK = 64
_TINY = 1e-20
_ENTRY = 16
"""bits of a table's entry"""


@dataclass(frozen=True)
class Palette:
    """codes: uint8 in the weight's own shape, outputs first. tables: float16 [groups, 2^bits], each ascending; a group
    is as many consecutive outputs as there are for each table."""

    bits: int
    codes: npt.NDArray[np.uint8]
    tables: npt.NDArray[np.float16]

    @property
    def group(self) -> int:
        """Outputs that share a table."""
        return len(self.codes) // len(self.tables)

    @property
    def reals(self) -> Tensor:
        """What the codes stand for, float32 [n, o]."""
        return torch.from_numpy(self.dequantize()).reshape(len(self.codes), -1).T

    @property
    def stored(self) -> int:
        """Bits of codes and tables."""
        return self.codes.size * self.bits + self.tables.size * _ENTRY

    def small(self) -> Palette:
        """Its codes take no more bytes than they need already."""
        return self

    def dequantize(self) -> npt.NDArray[np.float32]:
        """What the codes stand for."""
        tables = self.tables.astype(np.float32).repeat(self.group, 0)
        flat = np.take_along_axis(tables, self.codes.reshape(len(self.codes), -1).astype(np.int64), 1)
        return flat.reshape(self.codes.shape)

    def take(self, start: int, stop: int) -> Palette:
        """Outputs start to stop. EdgeForgeError: a cut through a group."""
        if start % self.group or stop % self.group:
            raise EdgeForgeError(f"outputs {start} to {stop} cut through a group of {self.group} that share a table",
                                 "take groups that divide a head's channels")
        return Palette(self.bits, self.codes[start:stop], self.tables[start // self.group : stop // self.group])


def fit(weight: Tensor, gram: Gram, bits: int, group: int, rounds: int = 2, passed_on: bool = True) -> Palette:
    """The palette of weight [n, o], its codes laid [o, n, 1, 1].

    Args:
        rounds: times that tables and codes are improved in turn. passed_on: codes are first chosen with errors passed
            on, not to nearest.

    Raises:
        EdgeForgeError: group does not divide the outputs.
    """
    if weight.shape[1] % group:
        raise EdgeForgeError(f"groups of {group} outputs do not divide {weight.shape[1]}", "take a divisor")
    parts = [_fit(part.contiguous(), gram, bits, group, rounds, passed_on)
             for part in torch.split(weight, max(_OUTPUTS // group, 1) * group, 1)]
    return Palette(bits, np.concatenate([p.codes for p in parts]), np.concatenate([p.tables for p in parts]))


def _fit(weight: Tensor, gram: Gram, bits: int, group: int, rounds: int, passed_on: bool) -> Palette:
    n, outputs = weight.shape
    found = _Search(weight, gram, group)
    tables = found.means(1 << bits, gram.upper.diagonal()[gram.order.argsort()] ** -2 if passed_on else
                         gram.matrix.diagonal())
    codes = found.passed_on(tables) if passed_on else found.nearest(tables)
    slope = found.slope(codes, tables)
    best = found.loss(codes, tables, slope)
    for _ in range(rounds):
        new_tables, new_codes = found.sorted(found.solved(codes, tables, slope), codes)
        new_codes, new_slope = found.swept(new_codes, new_tables)
        loss = found.loss(new_codes, new_tables, new_slope)
        better = loss < best
        best = torch.where(better, loss, best)
        tables = torch.where(better[:, None], new_tables, tables)
        columns = better.repeat_interleave(group)[None]
        codes, slope = torch.where(columns, new_codes, codes), torch.where(columns, new_slope, slope)
    laid = codes.T.to(torch.uint8).numpy().reshape(outputs, n, 1, 1)
    return Palette(bits, np.ascontiguousarray(laid), tables.half().numpy())


class _Search:
    """One weight [n, o] in groups of g: codes are int64 [n, o], tables float [o / g, k], ascending float16 numbers."""

    def __init__(self, weight: Tensor, gram: Gram, group: int) -> None:
        self._weight, self._gram, self._group = weight, gram, group

    def slope(self, codes: Tensor, tables: Tensor) -> Tensor:
        """H e, [n, o]: the dearest thing here, so that it is handed on."""
        return self._gram.matrix @ (self._weight - self._reals(codes, tables))

    def loss(self, codes: Tensor, tables: Tensor, slope: Tensor) -> Tensor:
        """e' H e of every group."""
        return ((self._weight - self._reals(codes, tables)) * slope).sum(0).view(-1, self._group).sum(1)

    def means(self, count: int, energy: Tensor) -> Tensor:
        """Tables by k-means, each weight counted by its input's energy [n]: from entries that are filled evenly, and
        from Panter and Dite's density, whichever ends lower."""
        groups = self._weight.shape[1] // self._group
        values, order = self._split(self._weight).reshape(groups, -1).sort(1)
        mass = self._split(energy[:, None].expand_as(self._weight)).reshape(groups, -1).gather(1, order).double()
        sums = [torch.nn.functional.pad(x.cumsum(1), (1, 0)) for x in
                (mass, mass * values, mass * values.double().square())]
        share = (torch.arange(count) + 0.5) / count
        filled = values[:, (share * values.shape[1]).long()]
        ends = [_lloyd(values, sums, start) for start in (filled, _companded(values, sums[0], share))]
        means = torch.where((ends[0][1] <= ends[1][1])[:, None], ends[0][0], ends[1][0])
        return means.half().float().sort(1).values

    def nearest(self, tables: Tensor) -> Tensor:
        """Codes of the nearest entries."""
        return torch.stack([self._code(row, tables) for row in self._weight])

    def passed_on(self, tables: Tensor) -> Tensor:
        """Codes with every input's error passed on to those still open."""
        n, order, u = len(self._weight), self._gram.order, self._gram.upper
        left, found = self._weight[order], torch.empty(self._weight.shape, dtype=torch.int64)
        for start in range(0, n, _BLOCK):
            stop = min(start + _BLOCK, n)
            errors = torch.empty_like(left[start:stop])
            for i in range(start, stop):
                found[i] = self._code(left[i], tables)
                errors[i - start] = (left[i] - self._reals(found[i : i + 1], tables)[0]) / u[i, i]
                left[i + 1 : stop].addr_(u[i, i + 1 : stop], errors[i - start], alpha=-1)
            left[stop:] -= u[start:stop, stop:].T @ errors
        back = torch.empty_like(found)
        back[order] = found
        return back

    def solved(self, codes: Tensor, tables: Tensor, slope: Tensor) -> Tensor:
        """The tables with the least loss for these codes, then rounded to float16.

        With A picking entries, A'HA t = A'Hw; an entry that nobody uses stays.
        """
        h = self._gram.matrix
        residual = self._collect(slope, codes, tables)
        weight = self._collect(h.diagonal()[:, None].expand_as(self._weight), codes, tables).clamp_min(_TINY)
        tables, direction, scaled = tables.clone(), residual / weight, residual / weight
        energy = (residual * scaled).sum(1, keepdim=True)
        for _ in range(_CONJUGATE):
            image = self._collect(h @ self._reals(codes, direction), codes, tables)
            step = energy / (direction * image).sum(1, keepdim=True).clamp_min(_TINY)
            tables += step * direction
            residual -= step * image
            scaled = residual / weight
            fresh = (residual * scaled).sum(1, keepdim=True)
            direction, energy = scaled + fresh / energy.clamp_min(_TINY) * direction, fresh
        return tables.half().float()

    def sorted(self, tables: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Tables in ascending order, and the codes that mean the same there."""
        ordered, order = tables.sort(1)
        return ordered, self._reals(codes, order.argsort(1))

    def swept(self, codes: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        """One sweep over the inputs, each to its best code given all others; the codes and their slope."""
        n, h = len(codes), self._gram.matrix
        reals, codes = self._reals(codes, tables), codes.clone()
        slope = self.slope(codes, tables)
        for start in range(0, n, _BLOCK):
            stop = min(start + _BLOCK, n)
            local, inner = slope[start:stop].clone(), h[start:stop, start:stop].contiguous()
            moved = torch.empty_like(local)
            for i in range(start, stop):
                codes[i] = self._code(reals[i] + local[i - start] / h[i, i], tables)
                moved[i - start] = self._reals(codes[i : i + 1], tables)[0] - reals[i]
                local.addr_(inner[i - start], moved[i - start], alpha=-1)
            slope -= h[:, start:stop] @ moved
        return codes, slope

    def _code(self, row: Tensor, tables: Tensor) -> Tensor:
        """The nearest entry for one input of every output, [o]."""
        middles = (tables[:, 1:] + tables[:, :-1]) / 2
        return torch.searchsorted(middles, row.view(len(tables), -1).contiguous()).view(-1)

    def _reals(self, codes: Tensor, tables: Tensor) -> Tensor:
        """Entries of the tables by code, [rows, o]."""
        return torch.gather(tables, 1, self._split(codes).reshape(len(tables), -1)).view(
            len(tables), len(codes), -1).transpose(0, 1).reshape(codes.shape)

    def _split(self, array: Tensor) -> Tensor:
        """[n, o] as [groups, n, g]."""
        return array.reshape(len(array), -1, self._group).transpose(0, 1)

    def _collect(self, array: Tensor, codes: Tensor, tables: Tensor) -> Tensor:
        """A' array: what stands at each entry, summed, [groups, k]."""
        groups = len(tables)
        return torch.zeros_like(tables).scatter_add_(1, self._split(codes).reshape(groups, -1),
                                                     self._split(array).reshape(groups, -1))


def _companded(values: Tensor, mass: Tensor, share: Tensor) -> Tensor:
    """Entries [groups, k] as dense as the cube root of the values' own density, which is where the best of many lie
    (Panter and Dite, Proc. IRE 39, 1951). values: sorted, [groups, m]. mass: cumulated."""
    low, high = values[:, :1], values[:, -1:]
    edges = (low + (high - low) * torch.arange(_BINS + 1) / _BINS).contiguous()
    cuts = torch.searchsorted(values, edges)
    cuts[:, 0], cuts[:, -1] = 0, values.shape[1]
    density = torch.nn.functional.avg_pool1d(mass.gather(1, cuts).diff(dim=1), _SMOOTH, 1, _SMOOTH // 2)
    filled = density.clamp_min(0).pow(1 / 3).cumsum(1)
    wanted = share.double() * filled[:, -1:]
    place = torch.searchsorted(filled, wanted).clamp_max(_BINS - 1)
    return ((edges[:, :-1] + edges[:, 1:]) / 2).gather(1, place)


def _lloyd(values: Tensor, sums: list[Tensor], means: Tensor) -> tuple[Tensor, Tensor]:
    """k-means of sorted values [groups, m] from cumulated mass, first and second moment; means and loss [groups]."""
    means, values = means.double(), values.double().contiguous()
    loss = torch.zeros(len(values))
    for _ in range(_LLOYD):
        cuts = torch.searchsorted(values, (means[:, 1:] + means[:, :-1]) / 2)
        edges = torch.nn.functional.pad(cuts, (1, 0))
        edges = torch.cat([edges, torch.full_like(edges[:, :1], values.shape[1])], 1)
        mass, first, second = (s.gather(1, edges).diff(dim=1) for s in sums)
        centre = torch.where(mass > 0, first / mass.clamp_min(_TINY), means)
        loss = (second - 2 * centre * first + centre.square() * mass).sum(1)
        means = centre.sort(1).values
    return means.float(), loss


def spread(palettes: Mapping[str, Palette], sizes: Mapping[str, int]) -> dict[str, Palette]:
    """The palettes of weights and of their pieces `<weight>/h<k>`, which lie one after the other.

    sizes: outputs of every weight of a graph, by name.
    """
    found = {name: palettes[name] for name in sizes if name in palettes}
    for whole, palette in palettes.items():
        pieces = sorted((int(m[1]), name) for name in sizes if (m := re.fullmatch(rf"{re.escape(whole)}/h(\d+)", name)))
        ends = np.cumsum([0, *(sizes[name] for _, name in pieces)]).tolist()
        found |= {name: palette.take(start, stop) for (_, name), (start, stop) in
                  zip(pieces, pairwise(ends), strict=True)}
    return found
