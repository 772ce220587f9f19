"""Child process: one greedy token query through libGenie's C API. ``genie_worker job.json``

Starts in the bundle folder, with LD_LIBRARY_PATH set by the parent. Genie's messages go to stderr.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import sys
from pathlib import Path
from typing import Any

from edgeforge.backends import orphan

_TokenCallback = c.CFUNCTYPE(None, c.POINTER(c.c_uint32), c.c_uint32, c.c_int, c.c_void_p)
_LogCallback = c.CFUNCTYPE(None, c.c_void_p, c.c_char_p, c.c_int, c.c_uint64, c.c_void_p)
_COMPLETE_SENTENCE, _LOG_ERRORS, _LINE = 0, 1, 4096


def query(library: Path, config: dict[str, Any], ids: list[int], n: int) -> list[int]:
    """New tokens; RuntimeError names the call that failed and its status."""
    genie = c.CDLL(str(library))

    def call(name: str, *arguments: Any) -> None:
        function = getattr(genie, name)
        function.restype = c.c_int32
        status = function(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with status {status}")

    handle, log, dialog, found = c.c_void_p(), c.c_void_p(), c.c_void_p(), list[int]()
    log_callback = _LogCallback(_print_message)
    call("GenieDialogConfig_createFromJson", json.dumps(config).encode(), c.byref(handle))
    call("GenieLog_create", None, log_callback, c.c_int(_LOG_ERRORS), c.byref(log))
    call("GenieDialogConfig_bindLogger", handle, log)
    call("GenieDialog_create", handle, c.byref(dialog))
    call("GenieDialog_setMaxNumTokens", dialog, c.c_uint32(n))

    def collect(tokens: Any, count: int, code: int, user: Any) -> None:
        found.extend(int(tokens[i]) for i in range(count))

    call(
        "GenieDialog_tokenQuery",
        dialog,
        (c.c_uint32 * len(ids))(*ids),
        c.c_uint32(len(ids)),
        c.c_int(_COMPLETE_SENTENCE),
        _TokenCallback(collect),
        None,
    )
    call("GenieDialog_free", dialog)
    call("GenieDialogConfig_free", handle)
    call("GenieLog_free", log)
    return found


def _print_message(log: int, form: bytes, level: int, time: int, arguments: int) -> None:
    """Genie hands over a C format and its va_list; on x86-64 that is a pointer, which vsnprintf takes."""
    line = c.create_string_buffer(_LINE)
    c.CDLL(None).vsnprintf(line, c.c_size_t(_LINE), form, c.c_void_p(arguments))
    print(line.value.decode("utf-8", "replace").strip(), flush=True)


def main(argv: list[str]) -> int:
    orphan.end_with_parent()
    job = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    try:
        tokens = query(Path(job["library"]), job["config"], job["ids"], job["n"])
    except RuntimeError as error:
        print(f"Error: {error}", flush=True)
        return 1
    Path(job["result"]).write_text(json.dumps(tokens), encoding="utf-8")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Genie's own threads may outlive a failed create and crash the interpreter's teardown.
    sys.stdout.flush()
    os._exit(code)
