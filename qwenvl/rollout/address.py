"""The address of a server, without torch."""

from __future__ import annotations

from urllib.parse import urlsplit


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of ``host:port``, with or without ``http://`` before it.

    Raises:
        ValueError: it is none.

    Example:
        >>> host_and_port("127.0.0.1:8200")
        ('127.0.0.1', 8200)
    """
    try:
        parts = urlsplit(address if "//" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme not in ("", "http") or parts.path.strip("/"):
        raise ValueError(f"{address!r} is no address of a server: expected HOST:PORT, such as 127.0.0.1:8200")
    return host, port


def is_this_machine(host: str) -> bool:
    """Whether a host's name is this machine's own."""
    return host in ("127.0.0.1", "localhost", "::1")
