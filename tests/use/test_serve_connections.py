"""``qwenvl serve`` and hostile clients: pages of other sites, slow connections, the end of the server."""

import asyncio
import http.client
import os
import socket
import threading
import time
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import h11
import openai
import pytest

from qwenvl.commands.serve import _run
from qwenvl.types import RolloutBatch
from qwenvl.use import web
from qwenvl.use.answers import Pending, ServedAnswer, streamed
from qwenvl.use.chat_request import Patience
from qwenvl.use.options import ChatOptions
from tests.use.running import (
    ASK,
    CHAT,
    JSON,
    QUESTION,
    Dripping,
    Running,
    ask,
    connected,
    head,
    held_until,
    layers_of,
    options_of,
    raw,
    status_of,
    video,
)

# ---- who may ask


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({}, 415),
        ({**JSON, "Host": "rebound.example"}, 403),
        ({**JSON, "Host": "rebound.example:8000"}, 403),
        ({**JSON, "Host": "localhost.example"}, 403),
        ({**JSON, "Host": "user@rebound.example"}, 403),
        ({**JSON, "Host": ""}, 403),
        ({**JSON, "Origin": "https://elsewhere.example"}, 403),
        ({**JSON, "Origin": "null"}, 403),
        ({**JSON, "Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
        ({**JSON, "Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
        ({**JSON, "Host": "192.168.7.7"}, 200),  # no page can have bound an address to another
        ({"Content-Type": "application/json; charset=utf-8", "Host": "[::1]:80"}, 200),
    ],
)
def test_pages_of_other_sites_get_no_answer(running, headers, status):
    found, answer = raw(running, "POST", CHAT, ASK, headers)
    assert found == status and ("choices" in answer) is (status == 200)


def test_no_page_is_allowed_by_cors(running):
    asks = {"Origin": "http://x.example", "Access-Control-Request-Method": "POST"}
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    connection.request("OPTIONS", CHAT, headers=asks)
    answer = connection.getresponse()
    assert answer.status == 403 and not [name for name in answer.headers if name.lower().startswith("access-control")]
    connection.close()


def test_only_the_allowed_hosts_are_answered():
    gate = web.Gate(None, options_of("--allowed_hosts", "GPU-7", "--host", "box.local"))
    assert [gate._is_ours(host) for host in ("gpu-7:80", "Box.local", "localhost", "gpu-8", "[", "a b")] == [
        *(True, True, True),
        *(False, False, False),
    ]


@pytest.fixture(scope="module")
def locked(made_media):
    """A server with a key and few places."""
    os.environ["QWENVL_API_KEY"] = "of-the-environment"  # which the flag replaces
    try:
        server = Running(made_media, "--max_waiting", "5", "--api_key", "open-sesame", "--allow_http", send_buffer=4096)
    finally:
        del os.environ["QWENVL_API_KEY"]
    server.client = server.client.with_options(api_key="open-sesame")
    yield server
    server.end()


KEY = {**JSON, "Authorization": "Bearer open-sesame"}


def test_requests_without_the_key_are_refused(locked):
    assert locked.ask("Hi", max_tokens=2).choices
    other = locked.client.with_options(api_key="none")
    with pytest.raises(openai.AuthenticationError):
        other.models.list()
    for wrong in ("open-sesame", "Bearer", "Bearer open-sesam", "Bearer \xe9", "Basic open-sesame"):
        assert raw(locked, "POST", CHAT, ASK, {**JSON, "Authorization": wrong})[0] == 401
    assert raw(locked, "GET", "/health")[0] == 200  # without a key: it tells nothing of requests


def test_the_key_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("QWENVL_API_KEY", "of-the-environment")
    assert options_of().key == "of-the-environment" and options_of("--api_key", "x").key == "x"
    monkeypatch.setenv("QWENVL_API_KEY", "two words")
    with pytest.raises(ValueError, match="QWENVL_API_KEY"):
        options_of()


# ---- connections


def test_a_body_takes_a_place_and_has_to_come_in_time(running, monkeypatch):
    monkeypatch.setattr("qwenvl.use.places.LONG_ARRIVAL_SECONDS", 60.0)
    monkeypatch.setattr(running.server.limits, "max_waiting", 1)
    with connected(running) as slow:
        slow.sendall(head(len(ASK)) + ASK[:10])
        while not running.server.active:
            time.sleep(0.01)
        assert raw(running, "POST", CHAT, ASK)[0] == 429
        slow.sendall(ASK[10:])
        assert status_of(slow) == 200
        monkeypatch.setattr(web, "SECONDS_BETWEEN_LOOKS", 0.1)
        slow.sendall(head(len(ASK)) + ASK[:10])
        assert status_of(slow) == 408
    assert running.is_idle()


def test_a_body_that_comes_slowly_gives_way_to_other_requests(running, monkeypatch):
    monkeypatch.setattr("qwenvl.use.places.LONG_ARRIVAL_SECONDS", 0.0)
    monkeypatch.setattr(running.server.limits, "max_waiting", 2)
    with connected(running) as oldest, connected(running) as other:
        for number, client in enumerate((oldest, other), start=1):
            client.sendall(head(len(ASK)) + ASK[:10])
            while running.server.active < number:
                time.sleep(0.01)
        assert raw(running, "POST", CHAT, ASK)[0] == 200
        assert status_of(oldest) == 429
        other.sendall(ASK[10:])
        assert status_of(other) == 200
    assert running.is_idle()


def test_a_body_that_comes_slowly_gives_back_its_memory(running, monkeypatch):
    monkeypatch.setattr("qwenvl.use.places.LONG_ARRIVAL_SECONDS", 0.0)
    monkeypatch.setattr("qwenvl.use.places.MOST_BODIES", 1000 + len(ASK) // 2)
    with connected(running) as slow:
        slow.sendall(head(2000) + b" " * 1000)
        while not sum(each.held for each in running.server.places._arrivals):
            time.sleep(0.01)
        assert raw(running, "POST", CHAT, ASK)[0] == 200
        assert status_of(slow) == 429
    assert running.is_idle()


def test_the_time_of_a_request_begins_with_its_body(running, monkeypatch):
    monkeypatch.setattr(running.server.limits, "max_seconds", 0.2)
    with connected(running) as slow:
        slow.sendall(head(len(ASK)) + ASK[:10])
        assert status_of(slow) == 504
    assert running.is_idle()


def test_bodies_have_a_length_and_a_bound(running, monkeypatch):
    with connected(running) as client:
        client.sendall(head(None, **{"Transfer-Encoding": "chunked"}) + b"1\r\n{\r\n")
        assert status_of(client) == 411
    with connected(running) as client:  # of both the chunks would count
        client.sendall(head(5, **{"Transfer-Encoding": "chunked"}) + b"1\r\n{\r\n")
        assert status_of(client) == 411
    for length in (10**6 + 1, 10**20, "9" * 400):
        with connected(running) as client:
            client.sendall(head(length))
            assert status_of(client) in (400, 413)
    monkeypatch.setattr("qwenvl.use.places.MOST_BODIES", 100)
    assert raw(running, "POST", CHAT, ask("x" * 100))[0] == 429
    assert running.is_idle() and not running.server.places._arrivals


@pytest.fixture
def parsed(monkeypatch):
    """The pieces that h11 is given."""
    pieces = []
    receive = h11.Connection.receive_data
    monkeypatch.setattr(h11.Connection, "receive_data", lambda self, data: pieces.append(data) or receive(self, data))
    return pieces


@pytest.mark.parametrize("address", [CHAT, "/health", "/none"])
def test_bodies_in_chunks_are_refused_before_they_are_parsed(running, parsed, address):
    beginning = head(None, **{"Transfer-Encoding": "chunked"}).replace(CHAT.encode(), address.encode())
    with connected(running) as client:
        client.sendall(beginning + b"1\r\n \r\n")
        assert status_of(client) == 411
    with connected(running) as client, suppress(ConnectionError):  # the server closes while the rest is sent
        client.sendall(beginning + b"1\r\n \r\n" * 200_000)
        status_of(client)
    assert raw(running, "GET", "/health")[0] == 200
    assert sum(map(len, parsed)) < 3 * web.PIECE_BYTES and running.is_idle()


def test_heads_have_a_bound_even_if_they_come_at_once(running, parsed):
    line = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    long = line + b"a:\r\n" * 100_000 + b"\r\n"
    for before in (b"", head(len(ASK)) + ASK):  # nor that of the next request while the first one is answered
        with connected(running) as client, suppress(ConnectionError):
            client.sendall(before + long)
            status_of(client)
    with connected(running) as client:  # a short one may wait
        client.sendall(head(len(ASK)) + ASK + line + b"\r\n")
        assert status_of(client) == 200
    assert raw(running, "GET", "/health")[0] == 200
    assert sum(map(len, parsed)) < 4 * h11._connection.DEFAULT_MAX_INCOMPLETE_EVENT_SIZE
    while not running.is_idle():
        time.sleep(0.01)


ONE, OTHER = "127.0.0.2", "127.0.0.3"


@pytest.fixture
def held(running, monkeypatch):
    """The clients whose requests were sampled, in order, and the event that lets the first of these go on."""
    clients = []
    free = threading.Event()
    sampled = running.server.sampling._sample

    def noted(together, loop):
        clients.extend(each.patience.client for each in together)
        assert free.wait(60)
        return sampled(together, loop)

    monkeypatch.setattr(running.server.sampling, "_sample", noted)
    yield SimpleNamespace(clients=clients, free=free)
    free.set()
    assert running.is_idle()


def sent(running, client: str, waiting: int) -> socket.socket:
    """The connection of a request that is sampled alone, and that waits or is sampled now."""
    body = ask("Hi", max_tokens=2, seed=1)
    connection = connected(running, client)
    connection.sendall(head(len(body)) + body)
    while len(running.server.sampling._waiting) < waiting:
        time.sleep(0.01)
    return connection


def test_a_client_with_many_requests_keeps_no_other_client_waiting(running, held):
    with ExitStack() as connections:
        first = connections.enter_context(sent(running, ONE, 0))
        while not held.clients:
            time.sleep(0.01)
        order = (ONE, ONE, ONE, OTHER, OTHER)
        others = [connections.enter_context(sent(running, client, n)) for n, client in enumerate(order, start=1)]
        held.free.set()
        assert [status_of(each) for each in (first, *others)] == [200] * 6
    assert held.clients == [ONE, OTHER, ONE, OTHER, ONE, ONE]


def test_a_request_whose_client_has_left_holds_no_prompt_while_others_are_sampled(running, held):
    first = sent(running, "127.0.0.2", 0)
    while not held.clients:
        time.sleep(0.01)
    for _ in range(3):
        sent(running, "127.0.0.3", 1).close()
        while running.server.sampling._waiting:
            time.sleep(0.01)
    assert held.clients == ["127.0.0.2"]  # which is sampled still
    held.free.set()
    assert status_of(first) == 200


def test_clients_with_new_addresses_keep_no_other_waiting(running, held):
    with ExitStack() as connections:
        first = connections.enter_context(sent(running, ONE, 0))
        while not held.clients:
            time.sleep(0.01)
        order = (ONE, ONE, *(f"127.0.1.{n}" for n in range(1, 7)))
        others = [connections.enter_context(sent(running, client, n)) for n, client in enumerate(order, start=1)]
        held.free.set()
        assert [status_of(each) for each in (first, *others)] == [200] * 9
    assert held.clients[:5] == [ONE, "127.0.1.1", ONE, "127.0.1.2", ONE]


def test_a_client_cannot_call_itself_another_one(running, held):
    body = ask("Hi", max_tokens=2)
    with connected(running, ONE) as connection:
        connection.sendall(head(len(body), **{"X-Forwarded-For": OTHER}) + body)
        held.free.set()
        assert status_of(connection) == 200
    assert held.clients == [ONE]


def test_a_client_with_all_places_gives_one_to_another_client(running, held, monkeypatch):
    monkeypatch.setattr(running.server.limits, "max_waiting", 3)
    with ExitStack() as connections:
        first = connections.enter_context(sent(running, ONE, 0))
        while not held.clients:
            time.sleep(0.01)
        second = connections.enter_context(sent(running, ONE, 1))
        third = connections.enter_context(sent(running, ONE, 2))
        assert status_of(connections.enter_context(sent(running, ONE, 2))) == 429  # it has all places
        other = connections.enter_context(sent(running, OTHER, 2))
        assert status_of(third) == 429
        assert status_of(connections.enter_context(sent(running, OTHER, 1))) == 429  # it would have more than the first
        held.free.set()
        assert [status_of(each) for each in (first, second, other)] == [200] * 3


def test_a_connection_without_a_head_is_closed(running, monkeypatch):
    monkeypatch.setattr(web.ConnectionInTime, "seconds", 0.1)
    for beginning in (b"", b"POST /v1", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "):
        with connected(running) as client:
            client.sendall(beginning)
            assert client.recv(10) == b""
    with connected(running) as client:  # nor the second one of a connection
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status_of(client) == 200
        client.sendall(b"GET /health HT")
        with suppress(ConnectionResetError):
            assert client.recv(10) == b""


def test_a_head_has_a_bound(running):
    with connected(running) as client, suppress(ConnectionResetError, BrokenPipeError):  # it does not read on
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000)
        assert status_of(client) == 400


def test_many_connections_keep_nobody_out(locked):
    waiting = [connected(locked) for _ in range(5 + web.IDLE_CONNECTIONS + 40)]
    for each in waiting[::2]:
        each.sendall(b"GET /hea")
    # An idle connection that the client has kept may be one of those that give way. By default clients try again.
    client = locked.client.with_options(max_retries=2)
    messages = [{"role": "user", "content": "Hi"}]
    assert client.chat.completions.create(model="model", messages=messages, max_tokens=2).choices
    assert raw(locked, "GET", "/health")[0] == 200
    for each in waiting:
        each.close()


def test_a_client_that_does_not_read_the_answer_is_disconnected(locked, monkeypatch):
    monkeypatch.setattr(web.ConnectionInTime, "seconds", 0.1)
    for more in ({}, {"stream": True, "logprobs": False}):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", locked.port))
            # An answer that the buffers do not hold.
            body = ask(QUESTION, n=64, temperature=1, **{"logprobs": True, **more})
            client.sendall(head(len(body), Authorization="Bearer open-sesame") + body)
            while not locked.server.active:
                time.sleep(0.01)
            while locked.connections():
                time.sleep(0.01)
    assert locked.is_idle()


def test_a_client_that_reads_a_little_now_and_then_is_disconnected(locked, monkeypatch):
    monkeypatch.setattr(web.ConnectionInTime, "seconds", 0.1)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", locked.port))
        body = ask(QUESTION, n=64, temperature=1, logprobs=True)
        client.sendall(head(len(body), Authorization="Bearer open-sesame") + body)
        while not locked.server.active:
            time.sleep(0.01)
        while locked.connections():
            with suppress(ConnectionError):
                client.recv(500)
            time.sleep(0.05)
    assert locked.is_idle()


def test_a_stream_that_is_read_slowly_ends_with_the_time_of_its_request(monkeypatch):
    pieces = [ServedAnswer(text, "stop", [1], None) for text in ("left", "right")]
    monkeypatch.setattr("qwenvl.use.answers.answers_of", lambda *_: pieces)
    monkeypatch.setattr("qwenvl.use.answers.usage_of", lambda *_: {})
    pending = Pending(None, ChatOptions(n=2, stream=True), None, Patience(60))

    async def events():
        yield RolloutBatch

    async def read():
        found = []
        async for line in streamed(pending, events(), {}, str):
            found.append(line)
            pending.patience._until = 0.0  # the client has taken all the time
        return found

    first, error, done = asyncio.run(read())
    assert "left" in first and "--max_seconds" in error and done == "data: [DONE]\n\n"


def test_the_server_ends_within_seconds_whatever_clients_do(made_media):
    server = Running(made_media, "--allow_http", "--allow_private_http")
    free = threading.Event()
    hold = layers_of(server)[0].register_forward_pre_hook(lambda *_: held_until(free))
    with Dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000) as slow:
        body = ask([video(f"{slow.address}/x.mp4")])
        clients = [connected(server) for _ in range(4)]
        clients[0].sendall(b"GET /hea")
        clients[1].sendall(head(100) + b"{")
        clients[2].sendall(head(len(body)) + body)
        clients[3].sendall(head(len(ASK)) + ASK)
        while server.server.active < 3 or not slow.asked:
            time.sleep(0.01)
        began = time.monotonic()
        server.end()
        assert time.monotonic() - began < 10 and not server.server._folder.exists()
        for each in clients:
            each.close()
        free.set()
        hold.remove()


def test_a_port_in_use_is_found_before_a_model_is_loaded(running, monkeypatch, capsys):
    monkeypatch.setattr("qwenvl.use.serve.ChatServer", lambda *_: pytest.fail("the model was loaded"))
    request = SimpleNamespace(options=options_of("--port", str(running.port)))
    with pytest.raises(SystemExit) as ended:
        _run(request)
    assert ended.value.code == 2 and f"--port {running.port}" in capsys.readouterr().err
