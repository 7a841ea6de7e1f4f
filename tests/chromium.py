"""A headless Chromium that tests talk to by its DevTools protocol, over two pipes: nothing is installed beside it."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")

START = "import os, sys; [os.dup2(int(sys.argv[n]), n + 2) for n in (1, 2)]; os.execvp(sys.argv[3], sys.argv[3:])"
"""What becomes the browser, after the pipes got the numbers 3 and 4 that it reads commands from and answers on."""


def find_chromium() -> str | None:
    """The program: ``$CHROMIUM``, or the first that is on the path."""
    return os.environ.get("CHROMIUM") or next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Page:
    """One page in a browser of its own.

    Attributes:
        errors: what went wrong in the page: exceptions, errors on the console, files that could not be loaded.
    """

    def __init__(self, program: str, profile: Path, seconds: float = 120.0):
        """
        Args:
            profile: an empty folder for the browser's own files.
            seconds: the longest wait for anything.
        """
        self.errors: list[str] = []
        self._seconds, self._number, self._buffer = seconds, 0, b""
        here_in, self._write = os.pipe()
        self._read, there_out = os.pipe()
        fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (here_in, there_out)]
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--hide-scrollbars", "--disable-extensions"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, *map(str, fds), program, *flags, "about:blank"],
            pass_fds=fds,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (here_in, there_out, *fds):
            os.close(fd)
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """End the browser, which then removes its files of the system's temporary folder."""
        self._session = None
        with suppress(AssertionError, OSError, subprocess.TimeoutExpired):
            self.send("Browser.close")
            self._process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # and the processes that it started
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def show(self, width: int, height: int = 900, dark: bool = False) -> None:
        """The size of the window, and the colours that the reader prefers."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Open an address anew, and wait until its own scripts have run."""
        self.send("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'")
        self.send("Page.navigate", url=url)
        self.wait("location.href !== 'about:blank' && document.readyState === 'complete'")

    def run(self, code: str) -> Any:
        """The value of an expression in the page. A promise is waited for."""
        done = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(f"{code}: {_told(done['exceptionDetails'])}")
        return done["result"].get("value")

    def wait(self, code: str) -> Any:
        """Ask until an expression is true."""
        until = time.monotonic() + self._seconds
        while not (found := self.run(code)):
            if time.monotonic() > until:
                raise AssertionError(f"never true: {code}; errors of the page: {self.errors}")
            time.sleep(0.05)
        return found

    def press(self, key: str, modifiers: int = 0, repeats: int = 0) -> None:
        """Type one character or named key. Modifiers, added up: 1 Alt, 2 Ctrl, 8 Shift.

        Args:
            repeats: of the key while it is held, 0.03 seconds apart.
        """
        # The number of a key is what moves the focus and the slider of a field.
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "Delete": 46}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        down = {"type": "keyDown", "key": key, "modifiers": modifiers, **text, **code}
        self.send("Input.dispatchKeyEvent", **down)
        for _ in range(repeats):
            time.sleep(0.03)
            self.send("Input.dispatchKeyEvent", autoRepeat=True, **down)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, modifiers=modifiers, **code)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse at a place of the window, move it in three steps and let it go."""
        (x, y), (to_x, to_y) = start, end
        self._mouse("mousePressed", x, y)
        for share in (0.3, 0.7, 1.0):
            self._mouse("mouseMoved", x + share * (to_x - x), y + share * (to_y - y))
        self._mouse("mouseReleased", to_x, to_y)

    def _mouse(self, kind: str, x: float, y: float) -> None:
        buttons = 0 if kind == "mouseReleased" else 1
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1)

    def wheel(self, x: float, y: float, pixels: int) -> None:
        """Turn the wheel of the mouse at a place of the window, downwards where ``pixels`` is above 0."""
        self.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=pixels)

    def picture(self, path: Path, whole: bool = False) -> None:
        """A screenshot as PNG."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command, and its answer. What the page tells meanwhile is looked through for errors."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            told = self._receive()
            if told.get("id") == self._number:
                if "error" in told:
                    raise AssertionError(f"{method}: {told['error']}")
                return told["result"]
            self._note(told)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], self._seconds)[0]:
                raise AssertionError(f"the browser said nothing for {self._seconds:.0f} s")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise AssertionError("the browser ended")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def _note(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        if told.get("method") == "Runtime.exceptionThrown":
            self.errors.append(_told(params["exceptionDetails"]))
        elif told.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str(params["args"]))
        elif told.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")


def _told(details: dict[str, Any]) -> str:
    return details.get("exception", {}).get("description") or details["text"]
