"""A server of ``qwenvl serve`` in threads of the tests, and requests to it."""

import base64
import http.client
import json
import socket
import threading
import time
from contextlib import suppress

import openai

from qwenvl.commands.serve import serve_request
from qwenvl.evaluate.settings import SERVE_GROUPS, parse_words
from qwenvl.use.options import ServeOptions
from qwenvl.use.serve import ChatServer
from qwenvl.use.web import WebServer

QUESTION = "Which steps? (1) pick (2) insert"
FLAGS = ("--use_cpu", "--generation_max_length", "24")
CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
ASK = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).encode()


class Running:
    """A server in threads of this process."""

    def __init__(self, folder, *flags: str, send_buffer: int | None = None) -> None:
        self.folder = str(folder / "model")
        words = [self.folder, "--media_root", str(folder / "media"), *FLAGS, *flags]
        self.server = ChatServer(serve_request(words))
        own = socket.socket()
        if send_buffer is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # of its connections too
        own.bind(("127.0.0.1", 0))
        own.listen(256)  # so that a client may come before the server accepts
        self.port = own.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._web = WebServer(self.server)
        self._thread = threading.Thread(target=self._web.run, kwargs={"sockets": [own]})
        self._thread.start()
        self.client = openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=120)

    def ask(self, *content, **more):
        parts = [{"type": "text", "text": each} if isinstance(each, str) else each for each in content]
        return self.client.chat.completions.create(model="model", messages=[{"role": "user", "content": parts}], **more)

    def connections(self) -> list:
        """The connections that are open."""
        return [*self._web.server_state.connections]

    def end(self) -> None:
        self.client.close()
        self._web.should_exit = True
        self._thread.join()

    def is_idle(self) -> bool:
        """Whether no request is active within a minute."""
        until = time.monotonic() + 60
        while self.server.active and time.monotonic() < until:
            time.sleep(0.05)
        return not self.server.active


def video(url: str) -> dict:
    return {"type": "video_url", "video_url": {"url": url}}


def image(url: str) -> dict:
    return {"type": "image_url", "image_url": {"url": url}}


def data_url(path) -> str:
    return f"data:video/mp4;base64,{base64.b64encode(path.read_bytes()).decode()}"


def raw(running, method: str, path: str, body: bytes = b"", headers: dict | None = None) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    connection.request(method, path, body, JSON if headers is None else headers)
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def ask(content, **more) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], **more}).encode()


def connected(running, client: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port), timeout=30, source_address=(client, 0))


def head(length: int | None, **more: str) -> bytes:
    lines = {"Host": "localhost", "Content-Type": "application/json", **more}
    lines |= {} if length is None else {"Content-Length": str(length)}
    return f"POST {CHAT} HTTP/1.1\r\n".encode() + "".join(f"{k}: {v}\r\n" for k, v in lines.items()).encode() + b"\r\n"


def status_of(client: socket.socket) -> int:
    answer = http.client.HTTPResponse(client)
    answer.begin()
    answer.read()
    return answer.status


def options_of(*words: str) -> ServeOptions:
    return parse_words(words, ServeOptions, SERVE_GROUPS)[1]


def held_until(free, begun=None) -> None:
    if begun is not None:
        begun.set()
    assert free.wait(60)


def layers_of(running):
    return running.server.sampling.model.model.language_model.layers


class Dripping:
    """A server that answers with a byte now and then, and says when it was asked."""

    def __init__(self, answer: bytes, pause: float = 0.05) -> None:
        self.asked = 0
        self.left = threading.Event()
        self.ended = threading.Event()
        self._answer, self._pause = answer, pause
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._drip, args=[client], daemon=True).start()

    def _drip(self, client: socket.socket) -> None:
        with client:
            client.recv(2**16)
            self.asked += 1
            for byte in self._answer:
                try:
                    client.sendall(bytes([byte]))
                except OSError:
                    self.left.set()
                    return
                if self.ended.wait(self._pause):
                    return


class Flooding(Dripping):
    """A server that sends its answer at once, and then another part again and again, as fast as it is read."""

    def __init__(self, begin: bytes, again: bytes = b"") -> None:
        super().__init__(begin)
        self._block = again * (2**16 // max(1, len(again)))

    def _drip(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            client.recv(2**16)
            self.asked += 1
            client.sendall(self._answer)
            while self._block:
                client.sendall(self._block)
        self.left.set()
