"""Ctrl-C that nothing swallows.

Python drops an interrupt that falls into a finalizer or a callback from C ("Exception ignored in ..."), and the import
of an extension hands it on as some other error. So it is remembered, and asked for wherever a build can stop.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_asked, _waiting, _deferred = False, False, 0


def listen() -> None:
    """From here on; not in a process that was started to ignore it (a shell's background job)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _remember)
        sys.unraisablehook = _tell_of_others


def asked() -> bool:
    """Has there been a Ctrl-C?"""
    return _asked


def check() -> None:
    """KeyboardInterrupt when there has been one."""
    if _asked:
        raise KeyboardInterrupt


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """A Ctrl-C inside comes at the end: for what must be begun as a whole, so that it can be undone. One that came
    before is past: who caught it may still want to save something."""
    global _deferred, _waiting
    _deferred += 1
    try:
        yield
    finally:
        _deferred -= 1
    if _waiting and not _deferred:
        _waiting = False
        raise KeyboardInterrupt


def _remember(number: int, frame: FrameType | None) -> None:
    global _asked, _waiting
    _asked, _waiting = True, _deferred > 0
    if not _deferred:
        raise KeyboardInterrupt


def _tell_of_others(dropped: UnraisableHookArgs) -> None:
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
