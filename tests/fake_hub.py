"""A Hugging Face and ModelScope hub on loopback that cuts each large transfer once in the middle, and a plain file server.

With ``hold`` it stops in the middle instead and keeps the connection, until ``go_on`` is set: time to kill the client.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """What it serves and what it was asked for."""

    def __init__(self, folder: Path, repo: str, cut: bool, hold: bool) -> None:
        self.folder, self.repo, self.cut, self.hold = folder, repo, cut, hold
        self.held, self.go_on = threading.Event(), threading.Event()
        self.sent: dict[str, int] = {}
        self.cuts: dict[str, int] = {}
        self.ranges: list[str] = []
        self.url = ""


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path.startswith("/api/v1/models/"):
                self._modelscope(path.removeprefix("/api/v1/models/"))
                return
            if path.startswith(f"/api/models/{hub.repo}"):
                names = sorted(p.name for p in hub.folder.iterdir())
                self._json({"id": hub.repo, "modelId": hub.repo, "sha": COMMIT, "private": False, "tags": [],
                            "siblings": [{"rfilename": name} for name in names]})  # fmt: skip
                return
            file = hub.folder / path.rsplit("/", 1)[-1]
            if path.startswith("/api/") or not file.is_file():
                self._json({"error": "Repository not found"}, 404)
                return
            self._file(file)

        def _modelscope(self, path: str) -> None:
            query = parse_qs(urlsplit(self.path).query)
            if path == f"{hub.repo}/repo/files":
                entries = [
                    {"Name": p.name, "Path": p.name, "Type": "blob", "Size": p.stat().st_size, "Revision": COMMIT,
                     "Sha256": hashlib.sha256(p.read_bytes()).hexdigest()} for p in sorted(hub.folder.iterdir())
                ]  # fmt: skip
                self._json({"Code": 200, "Success": True, "Message": "", "Data": {"Files": entries, "TotalCount": len(entries)}})
            elif path == f"{hub.repo}/repo" and (hub.folder / query["FilePath"][0]).is_file():
                self._file(hub.folder / query["FilePath"][0])
            else:
                self._json({"Code": 10010205001, "Success": False, "Message": "record not found", "Data": None}, 404)

        def _json(self, data: dict, code: int = 200) -> None:
            body = json.dumps(data).encode()
            self.send_response(code)
            if code == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def _file(self, file: Path) -> None:
            body = file.read_bytes()
            start = 0
            asked = self.headers.get("Range")
            if asked and self.command == "GET":
                hub.ranges.append(f"{file.name} {asked}")
                start = int(asked.removeprefix("bytes=").split("-")[0])
            end = (asked or "").rpartition("-")[2]
            part = body[start : int(end) + 1 if end else None]
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(part)))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(body)}")
            self.end_headers()
            if self.command == "HEAD":
                return
            if hub.cut and len(body) > 100_000 and not hub.cuts.get(file.name):
                hub.cuts[file.name] = 1
                hub.sent[file.name] = len(part) // 2
                self.wfile.write(part[: len(part) // 2])
                self.wfile.flush()
                if hub.hold:
                    hub.held.set()
                    hub.go_on.wait()
                self.close_connection = True
                self.connection.shutdown(2)
                return
            hub.sent[file.name] = hub.sent.get(file.name, 0) + len(part)
            self.wfile.write(part)

    return Handler


@contextmanager
def serve(folder: Path, repo: str = "Qwen/Qwen3-Mini", cut: bool = True, hold: bool = False) -> Iterator[Hub]:
    hub = Hub(folder, repo, cut, hold)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
