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
    """A text that is another one when a run has written something more.

    It names the size and the time of change of each file that a report is made from.
    """
    files = [path for folder in folders for path in (folder / "run.json", folder / "metrics.jsonl")]
    files += [path for folder in folders for path in sorted((folder / "rollouts").glob("rank-*.jsonl"))]
    found = [path.stat() for path in files if path.exists()]
    return ",".join(f"{status.st_size}-{status.st_mtime_ns}" for status in found)


class ReportServer:
    """Serves a folder on 127.0.0.1 in a thread of its own, until it is closed.

    Attributes:
        state: what it answers at ``/state``. The page asks for it, and loads itself anew when it is another one.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, folder: str | Path, port: int = 0) -> None:
        """
        Args:
            folder: of the report.
            port: 0 for any that is free.
        """
        self.state = ""
        self._server = ThreadingHTTPServer((HOST, port), partial(_Handler, directory=str(folder), owner=self))
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.server_address[1]

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.port}/"

    def __enter__(self) -> ReportServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, owner: ReportServer, **named: Any) -> None:
        self._owner = owner
        super().__init__(*args, **named)

    def do_GET(self) -> None:
        # A page of another site may send a browser here under that site's name. It is given nothing.
        if self.headers.get("Host") not in {f"{name}:{self._owner.port}" for name in (HOST, "localhost")}:
            self.send_error(403)
        elif self.path == "/state":
            data = self._owner.state.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        elif "%00" in self.path:  # no path of a file
            self.send_error(404)
        else:
            super().do_GET()

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")  # the files change while the run goes on
        super().end_headers()

    def do_HEAD(self) -> None:
        self.send_error(405)

    def list_directory(self, path: Any) -> None:
        self.send_error(404)

    def log_message(self, *args: Any) -> None:
        pass
