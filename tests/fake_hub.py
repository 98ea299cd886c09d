"""A Hugging Face hub on loopback: the part of its HTTP interface that fetching a model uses."""

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


@dataclass
class FakeHub:
    """What the hub holds, and what it was asked for.

    Attributes:
        models: folder of each id.
        gated: ids whose files nobody may read.
        broken: files that end in an error of the server.
        requests: paths of all requests.
    """

    models: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def downloaded(self) -> set[str]:
        """Names of the files that were read."""
        return {path.rsplit("/", 1)[1] for path in self.requests if path.startswith("GET") and "/resolve/" in path}

    def commit(self, model_id: str) -> str:
        """The one commit of a model."""
        return hashlib.sha1(model_id.encode()).hexdigest()

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a request."""
        self.requests.append(f"{method} {path}")
        kind, model_id, action, revision, name = _taken_apart(path)
        if model_id not in self.models:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        commit = self.commit(model_id)
        if revision not in ("main", "v1", commit):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        if kind == "api":
            return 200, {}, json.dumps(self._described(model_id, action)).encode()
        return self._file(model_id, name)

    def _described(self, model_id: str, action: str) -> Any:
        if action == "revision":
            return {"id": model_id, "sha": self.commit(model_id), "private": False, "tags": [], "siblings": []}
        folder = self.models[model_id]
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return [
            {"type": "file", "path": str(path.relative_to(folder)), "size": path.stat().st_size, "oid": _digest(path)}
            for path in files
        ]

    def _file(self, model_id: str, name: str) -> tuple[int, dict[str, str], bytes]:
        if model_id in self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        if name in self.broken:
            return 400, {}, b"{}"
        path = self.models[model_id] / name
        return 200, {"ETag": f'"{_digest(path)}"', "X-Repo-Commit": self.commit(model_id)}, path.read_bytes()


def _taken_apart(path: str) -> tuple[str, str, str, str, str]:
    """Kind, id, action, revision and file of /api/models/A/B/ACTION/REVISION or /A/B/resolve/REVISION/FILE."""
    parts = path.split("?")[0].strip("/").split("/")
    kind = "api" if parts[:2] == ["api", "models"] else "file"
    rest = parts[2:] if kind == "api" else parts
    rest += [""] * (4 - len(rest))
    return kind, "/".join(rest[:2]), rest[2], rest[3], "/".join(rest[4:])


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub that answers until the block ends."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = hub.answer(self.command, self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815  # http.server finds methods by these names

        def log_message(self, *args: object) -> None:
            """Requests are kept, not printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
