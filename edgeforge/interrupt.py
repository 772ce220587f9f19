"""Ctrl-C that nothing swallows.

Python drops an interrupt that falls into a finalizer or a callback from C ("Exception ignored in ..."), and the import
of an extension hands it on as some other error. So it is remembered, and asked for wherever a build can stop.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_asked = False


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


def _remember(number: int, frame: FrameType | None) -> None:
    global _asked
    _asked = True
    raise KeyboardInterrupt


def _tell_of_others(dropped: UnraisableHookArgs) -> None:
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
