"""Serves the folder of a report to browsers on this machine, and to no others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

HOST = "127.0.0.1"


def state_of(folders: Sequence[Path]) -> str:
    """The sizes and modification times of the files that a report is made from: a text that changes with them."""
    files = [path for folder in folders for path in (folder / "run.json", folder / "metrics.jsonl")]
    files += [path for folder in folders for path in sorted((folder / "rollouts").glob("rank-*.jsonl"))]
    found = [path.stat() for path in files if path.exists()]
    return ",".join(f"{status.st_size}-{status.st_mtime_ns}" for status in found)


class ReportServer(ThreadingHTTPServer):
    """Serves a folder on 127.0.0.1 in a thread of its own, within a ``with`` block.

    Args:
        folder: of the report.
        port: 0 for any free one.

    Attributes:
        state: the response at ``/state``. The page polls it, and reloads when it changes.

    Raises:
        OSError: the port is in use.
    """

    def __init__(self, folder: str | Path, port: int = 0) -> None:
        super().__init__((HOST, port), partial(_Handler, directory=str(folder)))
        self.state = ""

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://{HOST}:{self.server_port}/"

    def __enter__(self) -> ReportServer:
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(SimpleHTTPRequestHandler):
    server: ReportServer

    def do_GET(self) -> None:
        # A page of another site may send a browser here under that site's name (DNS rebinding).
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}:
            self.send_error(403)
        elif self.path == "/state":
            data = self.server.state.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        elif "%00" in self.path:  # not a path of a file
            self.send_error(404)
        else:
            super().do_GET()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")  # the files change during the run
        super().end_headers()

    def do_HEAD(self) -> None:
        self.send_error(405)

    def list_directory(self, path: Any) -> None:
        self.send_error(404)

    def log_message(self, *args: Any) -> None:
        pass
