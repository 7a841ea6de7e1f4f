"""HTTP, by the standard library: paths to the server's methods, refusals to statuses."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

from qwenvl.vllm_server.server import Server
from qwenvl.vllm_server.wire.body import MOST_BYTES, TOKEN, Refusal
from qwenvl.vllm_server.wire.link import LinkRequest
from qwenvl.vllm_server.wire.sampling import SampleRequest
from qwenvl.vllm_server.wire.weights import WeightsRequest


class Web(ThreadingHTTPServer):
    """Listens. Each connection has a thread, and the server lets one of them at the engine at a time."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], server: Server, token: str):
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self.answers, self.token = server, token
        self.is_loopback = ipaddress.ip_address(self.server_name.partition("%")[0]).is_loopback

    @property
    def url(self) -> str:
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"

    def server_bind(self) -> None:
        """As its parent, which would also ask the network for this machine's name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]


class Handler(BaseHTTPRequestHandler):
    """One connection, which is closed where nothing is sent for ``timeout`` seconds."""

    protocol_version = "HTTP/1.1"
    timeout = 30.0
    server: Web
    _left = 0

    def do_GET(self) -> None:
        self._reply(self._get)

    def do_POST(self) -> None:
        self._reply(self._post)

    def _get(self) -> bytes:
        if self.path != "/health":
            raise Refusal("request", f"GET {self.path}: there is only /health")
        return self.server.answers.health().pack()

    def _post(self) -> bytes:
        body, answers = self._body(), self.server.answers
        if self.path == "/sample":
            return answers.sample(SampleRequest.unpack(body)).pack()
        if self.path == "/weights":
            return answers.take_weights(WeightsRequest.unpack(body)).pack()
        if self.path == "/link":
            return answers.join(LinkRequest.unpack(body)).pack()
        if self.path in ("/sleep", "/wake"):
            return answers.sleep(self.path == "/sleep").pack()
        raise Refusal("request", f"POST {self.path}: there are /sample, /weights, /link, /sleep and /wake")

    def _reply(self, answer: Callable[[], bytes]) -> None:
        length = self.headers.get("Content-Length", "0")
        self._left = int(length) if length.isdecimal() else 0  # bytes of the body that were not read
        try:
            self._check_sender()
            status, body = 200, answer()
        except Refusal as refusal:
            status, body = refusal.status, refusal.body()
            self._drain()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _check_sender(self) -> None:
        # A page of another site may have a browser send it, under that site's name or its own.
        host = self.headers.get("Host", "").rpartition(":")[0]
        own = {self.server.server_name, "127.0.0.1", "localhost", "[::1]"}
        if "Origin" in self.headers or (self.server.is_loopback and host not in own):
            raise Refusal("page", "web pages are given nothing: name this machine as 127.0.0.1 or localhost")
        expected = f"Bearer {self.server.token}".encode()
        given = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, expected):
            raise Refusal(
                "token",
                f"the token is missing or another: set ${TOKEN} to the server's, or to vllm-token in the "
                "cache folder (~/.cache/qwenvl) of its machine",
            )

    def _drain(self) -> None:
        """Reads what is left of a body, so that its sender comes to read the refusal. Then the connection ends."""
        self.close_connection = True
        while self._left > 0 and (read := self.rfile.read(min(self._left, 2**20))):
            self._left -= len(read)

    def _body(self) -> bytes:
        size = self._left
        if "Content-Length" not in self.headers:
            raise Refusal("request", "no Content-Length")
        if size > MOST_BYTES:
            self._left = min(size, 2**20)  # nobody reads all that
            raise Refusal("size", f"a body of {size} bytes: at most {MOST_BYTES} are taken")
        body = self.rfile.read(size)
        self._left = 0
        if len(body) < size:
            raise Refusal("request", f"the connection broke after {len(body)} of {size} bytes")
        return body

    def log_message(self, *args) -> None:
        """Not a line for each request."""
