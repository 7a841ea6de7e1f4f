"""A server of ``qwenvl serve`` in threads of the tests, and requests to it."""

import base64
import http.client
import json
import socket
import threading
import time

import openai

from qwenvl.use.serve import ChatServer
from qwenvl.use.serve_command import serve_request
from qwenvl.use.web import WebServer

QUESTION = "Which steps? (1) pick (2) insert"
FLAGS = ("--use_cpu", "--generation_max_length", "24")
CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


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
        """Those that are open."""
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
