"""A hub on this machine: the few endpoints that huggingface_hub asks for a snapshot, over a folder of files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Hub:
    """What it serves, and what it was asked: `METHOD path`."""

    files: dict[str, bytes]
    repository: str = "org/tiny"
    address: str = ""
    asked: list[str] = field(default_factory=list)
    cut: str = ""
    """a file whose body ends halfway"""


@contextmanager
def serve(folder: Path, **extra: bytes) -> Iterator[Hub]:
    """A running hub with the folder's files as org/tiny; `org/gated` is gated, `org/down` an error 500."""
    files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    hub = Hub(files | extra)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        repository = self.hub.repository
        if path.startswith(("/api/models/org/gated/", "/org/gated/")):
            self._error(403, "GatedRepo")
        elif path.startswith(("/api/models/org/down/", "/org/down/")):
            self._error(500, "")
        elif path in (f"/api/models/{repository}/revision/{r}" for r in ("main", "v1", COMMIT)):
            self._json({"id": repository, "sha": COMMIT, "siblings": [{"rfilename": n} for n in self.hub.files]})
        elif path.startswith(f"/api/models/{repository}/revision/"):
            self._error(404, "RevisionNotFound")
        elif path.startswith(f"/api/models/{repository}/tree/"):
            self._json([{"type": "file", "path": n, "size": len(c), "oid": _etag(c)}
                        for n, c in self.hub.files.items()])
        elif path.startswith(f"/{repository}/resolve/{COMMIT}/"):
            self._file(path.removeprefix(f"/{repository}/resolve/{COMMIT}/"))
        else:
            self._error(401, "RepoNotFound")

    def _file(self, name: str) -> None:
        if name not in self.hub.files:
            self._error(404, "EntryNotFound")
            return
        content = self.hub.files[name]
        self._head(200, len(content), {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT})
        if self.command == "GET":
            self.wfile.write(content[: len(content) // 2] if name == self.hub.cut else content)
            self.close_connection = True

    def _json(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self._head(200, len(content), {"Content-Type": "application/json"})
        self.wfile.write(content)

    def _error(self, code: int, name: str) -> None:
        self._head(code, 0, {"X-Error-Code": name, "X-Error-Message": name} if name else {})

    def _head(self, code: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for key, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(key, value)
        self.end_headers()


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
