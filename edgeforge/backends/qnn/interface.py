"""QNN's function table, and the two entries that we stand in for (worker process only).

ONNX Runtime's QNN provider names a graph after a hash and, once contexts are shared, always asks for
shared weights. Both choices go through the table that libQnnHtp.so hands out, one entry each:

* ``graphCreate(context, name, config, out)``: we pass our own name on;
* ``contextCreate(backend, device, config, out)``: for the x86 twin we leave one option out.

The table's layout belongs to QNN's core API. The versions whose layout was checked are listed, the
library must own the functions, and at run time graphCreate must get exactly the context that
contextCreate returned: two wrong entries cannot agree on that.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgeforge.backends.qnn import wheel
from edgeforge.errors import CompilerError

KNOWN_CORE_API = ((2, 40),)
HTP_BACKEND_ID = 6
_CONTEXT_CREATE, _GRAPH_CREATE, _ENTRIES = 9, 15, 64
_CUSTOM_OPTION, _HTP_WEIGHT_SHARING = 0, 1
_FAILURE = 1  # any non-zero Qnn_ErrorHandle_t

_ContextCreate = c.CFUNCTYPE(c.c_uint64, c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p)
_GraphCreate = c.CFUNCTYPE(c.c_uint64, c.c_void_p, c.c_char_p, c.c_void_p, c.c_void_p)


class _Version(c.Structure):
    _fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("patch", c.c_uint32)]


class _Interface(c.Structure):
    """QnnInterface_t: who the backend is, then the table."""

    _fields_ = [
        ("backend_id", c.c_uint32),
        ("provider", c.c_char_p),
        ("core", _Version),
        ("backend", _Version),
        ("entries", c.c_void_p * _ENTRIES),
    ]


class _Config(c.Structure):
    """QnnContext_Config_t: an option and its payload, here a pointer."""

    _fields_ = [("option", c.c_uint32), ("payload", c.c_void_p)]


class _DlInfo(c.Structure):
    _fields_ = [("file", c.c_char_p), ("base", c.c_void_p), ("symbol", c.c_char_p), ("address", c.c_void_p)]


class Hooks:
    """Names graphs and, if asked, drops weight sharing, until :meth:`remove`.

    Args:
        htp: path of libQnnHtp.so, the same file that the provider gets as backend_path.
        share_weights: False drops HTP's weight-sharing option when a context is created.
    """

    def __init__(self, htp: Path, *, share_weights: bool) -> None:
        self._share_weights = share_weights
        self._library = c.CDLL(str(htp))  # the provider's dlopen of the same file gets this same table
        self._table = self._find(htp)
        self._owned_by(htp, _CONTEXT_CREATE)
        self._owned_by(htp, _GRAPH_CREATE)
        self._contexts: set[int] = set()
        self._name: str | None = None
        self._given = ""
        self.created: list[str] = []
        self.dropped_options = 0
        self.problems: list[str] = []
        self._originals: dict[int, int] = {}
        self._create_context = _ContextCreate(self._entry(_CONTEXT_CREATE))
        self._create_graph = _GraphCreate(self._entry(_GRAPH_CREATE))
        self._keep = (_ContextCreate(self._on_context), _GraphCreate(self._on_graph))
        self._replace(_CONTEXT_CREATE, self._keep[0])
        self._replace(_GRAPH_CREATE, self._keep[1])

    def name_next(self, name: str) -> None:
        """The next graph that is created gets this name; a second one before the next call is an error."""
        self._name = self._given = name

    def remove(self) -> None:
        """Puts the library's own functions back."""
        for slot, address in self._originals.items():
            self._table.entries[slot] = address

    def _find(self, htp: Path) -> _Interface:
        providers, count = c.POINTER(c.POINTER(_Interface))(), c.c_uint32()
        status = self._library.QnnInterface_getProviders(c.byref(providers), c.byref(count))
        if status or count.value != 1:
            raise CompilerError(
                f"{htp.name} offers {count.value} QNN interfaces (status {status}), expected one"
            )
        table: _Interface = providers[0].contents
        version = (table.core.major, table.core.minor)
        if table.backend_id != HTP_BACKEND_ID or version not in KNOWN_CORE_API:
            known = ", ".join(f"{a}.{b}" for a, b in KNOWN_CORE_API)
            raise CompilerError(
                f"{htp.name} speaks QNN core API {version[0]}.{version[1]} for backend {table.backend_id};"
                f" the table layout is known for HTP ({HTP_BACKEND_ID}) at {known}",
                f"install {wheel.DISTRIBUTION}=={wheel.TESTED}, or check entries 9 and 15 of the new table and list "
                "it",
            )
        return table

    def _owned_by(self, htp: Path, slot: int) -> None:
        """The entry must be a function inside the HTP library."""
        info = _DlInfo()
        found = c.CDLL(None).dladdr(c.c_void_p(self._entry(slot)), c.byref(info))
        if not found or Path((info.file or b"").decode()).name != htp.name:
            raise CompilerError(f"entry {slot} of QNN's interface table does not point into {htp.name}")

    def _entry(self, slot: int) -> int:
        return int(self._table.entries[slot] or 0)

    def _replace(self, slot: int, callback: Callable[..., Any]) -> None:
        self._originals[slot] = self._entry(slot)
        self._table.entries[slot] = c.cast(callback, c.c_void_p).value  # type: ignore[arg-type]

    def _on_context(self, backend: int, device: int, config: int | None, out: int) -> int:
        given = _null_terminated(config)
        kept = given if self._share_weights else [address for address in given if not _is_sharing(address)]
        self.dropped_options += len(given) - len(kept)
        array = (c.c_void_p * (len(kept) + 1))(*kept, None)
        status = int(self._create_context(backend, device, c.addressof(array) if kept else None, out))
        if status == 0:
            self._contexts.add(int(c.c_uint64.from_address(out).value))
        return status

    def _on_graph(self, context: int, name: bytes, config: int | None, out: int) -> int:
        if context not in self._contexts:
            self.problems.append("graphCreate got a context that contextCreate did not return: wrong table")
            return _FAILURE
        if self._name is None:
            self.problems.append(
                f"the provider split {self._given} into several graphs: some nodes cannot go to"
                " HTP, or a Dequantize/Quantize pair is missing around them"
            )
            return _FAILURE
        own, self._name = self._name, None
        status = int(self._create_graph(context, own.encode(), config, out))
        if status == 0:
            self.created.append(own)
        return status


def _null_terminated(array: int | None) -> list[int]:
    """The pointers of a C array that ends with NULL."""
    found: list[int] = []
    while array and (address := c.c_void_p.from_address(array + len(found) * c.sizeof(c.c_void_p)).value):
        found.append(address)
    return found


def _is_sharing(address: int) -> bool:
    """Whether this is the custom option {u32 1; bool} that turns HTP weight sharing on."""
    config = _Config.from_address(address)
    return (
        config.option == _CUSTOM_OPTION
        and bool(config.payload)
        and c.c_uint32.from_address(config.payload).value == _HTP_WEIGHT_SHARING
    )
