"""Bounded downloads of media from addresses that requests name, which may be hostile."""

from __future__ import annotations

import errno
import io
import os
import select
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult, quote, urljoin, urlsplit

MOST_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)
CONNECT_SECONDS = 10.0
SECONDS_BETWEEN_LOOKS = 0.25  # at whether anybody waits for a connection
# Names that are looked up at the same time. The system's resolver gives up after some ten seconds each. Each takes a
# thread that sleeps. One client must not have so many that it keeps out all others.
MOST_LOOKUPS = 256
MOST_LOOKUPS_OF_A_CLIENT = 16
CHUNK = 2**16  # bytes of a read
# Bytes of all that is no content, before there is any. Servers accept 8 to 16 kB of headers, and send less.
HEAD_BYTES = 2**15
# Bytes: a server that sends less at a time is asked again after a while only. A packet on the way has about 1,400.
SMALL = 512
SECONDS_AFTER_SMALL = 0.02
MOST_PIECES = 1000  # of the content, and one more for each ``SMALL`` bytes of it
PORTS = {"http": 80, "https": 443}
# Networks whose last 32 bits are an IPv4 address: translation (NAT64), and the forms that are no longer assigned.
_WITH_IPV4 = [ip_network(each) for each in ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")]
# Not of the internet, though older versions of Python call them global: those of protocols, where a cloud may have its
# metadata, local translation, site-local addresses, documentation, and segment routing.
_LOCAL = [
    ip_network(each) for each in ("192.0.0.0/24", "64:ff9b:1::/48", "fec0::/10", "3fff::/20", "5f00::/16")
]
_TARGET_CHARACTERS = "%/:=&?~+!$,;'@()*[]"  # that stay as they are in a path and its query


AtEnd = Callable[[Callable[[], object]], None]
"""Has its argument called, in another thread, when nobody waits for the file any more."""
Addresses = list[tuple[Any, ...]]
"""What ``socket.getaddrinfo`` gives."""

OnBytes = Callable[[int], None]
"""Called with the number of bytes of each piece of content that has come. It may raise, which ends the download."""


class BusyError(ValueError):
    """A file is not fetched now, and may be later."""


class Lookups:
    """The names that are being looked up: a bounded number for all requests, and for those of one client.

    A lookup cannot be interrupted. It goes on where its request has ended, and must not keep out other clients.
    """

    def __init__(self, most: int, most_of_a_client: int) -> None:
        self._most = most
        self._most_of_a_client = most_of_a_client
        self._running: Counter[str] = Counter()
        self._lock = threading.Lock()

    def begin(self, client: str) -> None:
        """Count one more.

        Raises:
            BusyError: there are too many.
        """
        with self._lock:
            if self._running[client] >= self._most_of_a_client or self._running.total() >= self._most:
                raise BusyError("cannot be fetched now: too many names are being looked up; try again later")
            self._running[client] += 1

    def end(self, client: str) -> None:
        """One has ended."""
        with self._lock:
            self._running[client] -= 1
            self._running = +self._running  # without clients that have none left


_lookups = Lookups(MOST_LOOKUPS, MOST_LOOKUPS_OF_A_CLIENT)


def _ignore(_: Any) -> None:
    pass


def fetch(
    url: str,
    *,
    most_bytes: int,
    seconds: float,
    allow_private: bool,
    client: str = "",
    at_end: AtEnd = _ignore,
    on_bytes: OnBytes = _ignore,
) -> bytes:
    """The bytes behind an http or https address.

    Proxies of the environment are not used: the address that is connected to must be the one that was checked.

    Args:
        most_bytes: of the file.
        seconds: for everything, redirects and the slowest server included.
        allow_private: also connect to addresses of this machine and of its network.
        client: who asks for it.
        at_end: has the download end early.
        on_bytes: see ``OnBytes``.

    Raises:
        ValueError: the file cannot be had. Nothing of what the server sent is in the message, but for its status.
        BusyError: it cannot be had now.
    """
    until = time.monotonic() + seconds
    for _ in range(MOST_REDIRECTS + 1):
        with _answer(url, until, allow_private, client, at_end) as (answer, reader):
            if answer.status not in REDIRECTS:
                return _content(answer, reader, most_bytes, until, on_bytes)
            target = _target(url, answer)
        if url.startswith("https:") and not target.startswith("https:"):
            raise ValueError("is redirected from https to another scheme; give the address of the file itself")
        url = target
    raise ValueError(f"is redirected more than {MOST_REDIRECTS} times; give the address of the file itself")


def _target(url: str, answer: HTTPResponse) -> str:
    """Where an answer redirects to."""
    with suppress(ValueError):  # it quotes what the server sent
        return urljoin(url, answer.getheader("Location") or "")
    raise ValueError("is redirected to an address that is none")


class BoundedReader(io.RawIOBase):
    """Reads what a server sends, up to a bound.

    ``http.client`` follows its peer in Python code: preliminary answers, headers, chunks of a byte, trailers. What
    sends them fast and without end would take Python's lock from all other threads.

    Attributes:
        most: bytes that may come. It grows with the content.
    """

    def __init__(self, wire: socket.socket) -> None:
        self.most = HEAD_BYTES
        self._wire = wire
        self._received = 0
        self._was_small = False

    def readable(self) -> bool:
        """Called by ``io``."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Called by ``io``.

        Raises:
            HTTPException: too much has come.
        """
        if self._was_small:
            time.sleep(SECONDS_AFTER_SMALL)
        count = self._wire.recv_into(buffer)
        self._was_small = count < SMALL
        self._received += count
        if self._received > self.most:
            raise HTTPException
        return count


class _Wire:
    """A socket as ``http.client`` uses it. It is closed by who has made it."""

    def __init__(self, wire: socket.socket) -> None:
        self.sendall = wire.sendall
        self.reader = BoundedReader(wire)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What an answer is read from."""
        return io.BufferedReader(self.reader)

    def close(self) -> None:
        """Called where an answer ends with its connection, before that is read."""


@contextmanager
def _answer(
    url: str, until: float, allow_private: bool, client: str, at_end: AtEnd
) -> Iterator[tuple[HTTPResponse, BoundedReader]]:
    """The answer to a GET, of which the status and the headers are read. Its connection ends with the context."""
    parts, connection = _endpoint(url)
    host = connection.host
    wire: socket.socket | None = None
    is_over = threading.Event()

    def shut() -> None:
        """Wake the thread that waits for the server."""
        is_over.set()
        if wire is not None:
            with suppress(OSError):  # it is closed already
                socket.socket.shutdown(wire, socket.SHUT_RDWR)  # not that of SSLSocket, which would say goodbye first

    # A server that sends a byte now and then keeps every bound on a single read: the whole exchange has one too.
    watchdog = threading.Timer(max(0.0, until - time.monotonic()), shut)
    watchdog.daemon = True
    watchdog.start()
    at_end(shut)
    try:
        found = _resolved(host, connection.port, until, client, at_end)
        wire = _connected(found, until, allow_private, is_over)
        if is_over.is_set():  # before there was something to shut
            raise ConnectionError
        if parts.scheme == "https":
            context = ssl.create_default_context()
            wire = context.wrap_socket(wire, server_hostname=host, do_handshake_on_connect=False)
            wire.do_handshake()
        bounded = _Wire(wire)
        connection.sock = bounded
        target = quote(parts.path or "/", _TARGET_CHARACTERS)
        if parts.query:
            target += "?" + quote(parts.query, _TARGET_CHARACTERS)
        connection.request("GET", target, headers={"User-Agent": "qwenvl"})
        with connection.getresponse() as answer:
            yield answer, bounded.reader
    except (OSError, HTTPException, UnicodeError) as error:
        raise ValueError(_reason(error, late=time.monotonic() >= until)) from None
    finally:
        watchdog.cancel()
        connection.close()
        if wire is not None:
            wire.close()


def _endpoint(url: str) -> tuple[SplitResult, HTTPConnection]:
    """The parts of an address, and a connection to its host that is not open yet."""
    with suppress(ValueError, HTTPException):
        parts = urlsplit(url)
        if parts.scheme in PORTS and parts.hostname:
            return parts, HTTPConnection(parts.hostname, parts.port or PORTS[parts.scheme])
    raise ValueError("leads to an address that is not http or https")


def _resolved(host: str, port: int, until: float, client: str, at_end: AtEnd) -> Addresses:
    """The addresses of a host.

    The system's resolver can't be interrupted, so it runs in a thread of its own, which may outlast the request.

    Raises:
        OSError, UnicodeError: there is none, or none within the time.
        BusyError: too many names are being looked up.
    """
    if _is_number(host):  # nobody is asked
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    _lookups.begin(client)
    found: Future[Addresses] = Future()

    def resolve() -> None:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            settle = partial(found.set_result, addresses)
        except Exception as error:  # raised where it is waited for
            settle = partial(found.set_exception, error)
        _lookups.end(client)
        with suppress(InvalidStateError):  # nobody waits any more
            settle()

    threading.Thread(target=resolve, name="resolve", daemon=True).start()
    at_end(found.cancel)
    try:
        return found.result(max(0.0, until - time.monotonic()))
    except (TimeoutError, CancelledError):
        found.cancel()
        raise OSError(0, "its name was not found in time") from None


def _is_number(host: str) -> bool:
    """Whether a host is an IP address."""
    with suppress(ValueError):
        ip_address(host)
        return True
    return False


def _connected(found: Addresses, until: float, allow_private: bool, is_over: threading.Event) -> socket.socket:
    """A socket to an address that was checked: a name may have another one when it is asked for again.

    Raises:
        ValueError: an address is not public.
        OSError: none can be connected to, or nobody waits any more.
    """
    if not allow_private and not all(is_public(str(address[0])) for *_, address in found):
        raise ValueError("leads to this machine or a private network (--allow_private_http)")
    failed: OSError | None = None
    for family, kind, protocol, _, address in found:
        wire = socket.socket(family, kind, protocol)
        try:
            _connect(wire, address, min(until, time.monotonic() + CONNECT_SECONDS), is_over)
            wire.settimeout(max(0.01, until - time.monotonic()))
            return wire
        except OSError as error:
            wire.close()
            failed = error
        # A name may have many addresses that do not answer, and each takes ten seconds.
        if is_over.is_set():
            break
    raise failed or OSError("no address")


def _connect(wire: socket.socket, address: Any, until: float, is_over: threading.Event) -> None:
    """Connects a socket to an address, as long as somebody waits for that.

    Raises:
        OSError: it cannot be connected, or not in time, or nobody waits any more.
    """
    wire.setblocking(False)
    status = wire.connect_ex(address)
    if status == errno.EINPROGRESS:
        waiting = select.poll()  # `select.select` takes no descriptors above 1,023
        waiting.register(wire, select.POLLOUT)
        while not waiting.poll(1000 * SECONDS_BETWEEN_LOOKS):
            if is_over.is_set() or time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        status = wire.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if status:
        raise OSError(status, os.strerror(status))


def is_public(address: str) -> bool:
    """Whether an IP address is one of the internet: not of this machine, of a private network or of a group.

    Example:
        >>> [is_public(each) for each in ("8.8.8.8", "127.0.0.1", "10.1.2.3", "169.254.169.254", "::ffff:127.0.0.1")]
        [True, False, False, False, False]
    """
    found = ip_address(address.partition("%")[0])
    if any(found in network for network in _LOCAL):
        return False
    inner = _embedded(found) if isinstance(found, IPv6Address) else None
    if inner is not None:
        return is_public(str(inner))
    return found.is_global and not found.is_multicast


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that packets to an IPv6 address of a transition mechanism reach."""
    if any(address in network for network in _WITH_IPV4):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)


def _reason(error: Exception, late: bool) -> str:
    """The reason why a file cannot be had, without anything that its server sent."""
    if late:
        return "cannot be fetched: it took too long"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "its host is not known"
    if isinstance(error, ssl.SSLError):
        return "its server has no valid certificate, or does not speak TLS"
    if isinstance(error, HTTPException):
        return "its server does not answer as HTTP"
    return f"cannot be fetched: {getattr(error, 'strerror', None) or 'the connection ended'}"


def _content(
    answer: HTTPResponse, reader: BoundedReader, most_bytes: int, until: float, on_bytes: OnBytes
) -> bytes:
    if answer.status != 200:
        raise ValueError(f"its server answers with status {answer.status}")
    data = bytearray()
    pieces = 0
    reader.most += 2 * CHUNK  # what is read ahead is counted before it is known to be content
    while chunk := answer.read1(CHUNK):
        on_bytes(len(chunk))
        data += chunk
        pieces += 1
        reader.most += 2 * len(chunk)
        if pieces > MOST_PIECES + len(data) // SMALL:
            raise ValueError(f"comes in pieces of less than {SMALL} bytes")
        if len(data) > most_bytes:
            raise ValueError(f"above {most_bytes / 1e6:g} MB (--max_body_mb)")
    # A connection that the watchdog has shut looks like the end of a file without a length.
    if time.monotonic() >= until or answer.length:
        raise ConnectionError
    return bytes(data)
