"""Weights that go from device to device: the same ones as by a file, in parts, and links that break."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from qwenvl.rollout.remote import link as link_module
from qwenvl.rollout.remote import nccl as nccl_module
from qwenvl.rollout.remote import weights as weights_module
from qwenvl.rollout.remote.link import GlooLine, IpcLine, Link, line_to
from qwenvl.rollout.remote.nccl import Nccl, NcclError, NcclLine
from qwenvl.rollout.remote.server import Server, ServerLostError, ServerRefusedError
from tests.rollout.remote.test_weights import language_model

CPU = torch.device("cpu")


def changed(model) -> None:
    """What learns."""
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))


def assert_given(server, model) -> None:
    for name, value in language_model(server.model).items():
        assert torch.equal(value, language_model(model)[name]), name


def test_weights_in_parts_and_what_learns(tiny_pair, fake, engine_of, monkeypatch):
    """One link for all syncs of a server. Messages hold names and shapes, and layers are not torn apart."""
    monkeypatch.setattr(weights_module, "PART_BYTES", 30_000)
    model, processor = tiny_pair(initializer_range=0.1)
    servers = [fake(initializer_range=0.1) for _ in range(2)]
    engine = engine_of(model, processor, servers, direct=True)
    for version in range(3):
        changed(model)
        engine.sync(model, version)
        for each in servers:
            assert_given(each, model)
        model.requires_grad_(version == 0)
        model.model.language_model.norm.requires_grad_(True)
    for each in servers:
        assert len(each.links) == 1 and len(each.given) > 4
        assert all(not request.tensors and request.path is None for request, _ in each.given)
        assert [names for request, names in each.given[-1:]] == [{"model.language_model.norm.weight"}]


@pytest.mark.parametrize("fault", ["die link", "die weights"])
def test_a_server_that_dies_is_lost_and_a_new_one_has_a_new_link(tiny_pair, fake, engine_of, fault):
    model, processor = tiny_pair(initializer_range=0.1)
    one, two = fake(initializer_range=0.1), fake(initializer_range=0.1)
    engine = engine_of(model, processor, [one, two], direct=True, deadline=5.0)
    one.faults = [fault]
    engine.sync(model, 0)  # the other is enough
    assert_given(two, model)
    again = fake(port=one.port, initializer_range=0.1)
    changed(model)
    engine.sync(model, 1)
    assert_given(again, model)
    assert_given(two, model)
    assert len(again.links) == len(two.links) == 1 and again.given[0][0].base is None


def test_weights_along_a_link_that_somebody_else_replaced_go_along_a_new_one(tiny_pair, fake, engine_of):
    model, processor = tiny_pair(initializer_range=0.1)
    server = fake(initializer_range=0.1)
    engine = engine_of(model, processor, [server], direct=True, deadline=5.0, patience=5.0)
    engine.sync(model, 0)
    Link(Server(server.address), server.boot, GlooLine(1, 5.0), 5.0)
    changed(model)
    engine.sync(model, 1)
    assert_given(server, model)
    assert len(server.links) == 3


def test_a_line_that_breaks_is_told_and_not_used_again(fake):
    """This end fails while the server waits for it."""
    server = fake()
    line = GlooLine(1, 3.0)
    link = Link(Server(server.address), server.boot, line, 3.0)

    def fail(flat):
        line.close()
        raise RuntimeError("brought about by the test")

    line.send = fail
    with pytest.raises(ServerLostError):
        link.put(link_module.WeightsRequest(1, None, shapes={"a": [2]}), torch.zeros(8, dtype=torch.uint8))
    assert link.closed


def test_which_line_and_why(monkeypatch, caplog):
    here, there = Server("localhost:1"), Server("gpu-7:1")
    on_cpu, on_gpu = (SimpleNamespace(nccl=nccl, workers=2) for nccl in (0, 23007))
    assert isinstance(line_to(here, on_cpu, CPU, 1.0), GlooLine)
    assert "weights go to it by gloo, since it computes on the CPU of this host" in caplog.text
    own = SimpleNamespace(address="127.0.0.1:1", sleeps=True)
    assert isinstance(line_to(own, on_gpu, torch.device("cuda", 0), 1.0), IpcLine)
    assert "by ipc, since it shares the GPU of this process. This way was not run so far" in caplog.text
    for server, health, told in (
        (there, on_cpu, "gpu-7:1: it computes on a CPU of another host and the policy on cpu"),
        (here, on_gpu, "it computes on a GPU and the policy on cpu: .*leave out --vllm_weights direct"),
    ):
        with pytest.raises(ServerRefusedError, match=told):
            line_to(server, health, CPU, 1.0)
    monkeypatch.setattr(link_module, "Nccl", lambda: SimpleNamespace(version=lambda: 22809))
    with pytest.raises(ServerRefusedError, match=r"has NCCL 23007, this process 22809, .*VLLM_NCCL_SO_PATH="):
        line_to(here, on_gpu, torch.device("cuda", 0), 1.0)


class FakeNccl:
    """NCCL's functions, which note what they are called with."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return self

    def name(self):
        return bytes(range(128))

    def call(self, name, *arguments):
        self.calls.append((name, *arguments))


class FakeStream:
    cuda_stream, is_done = 5, True

    def wait_stream(self, other): ...

    def record_event(self):
        return SimpleNamespace(query=lambda: self.is_done)


@pytest.fixture
def nccl_line(monkeypatch):
    """A line by a library that does nothing, for tensors of the CPU."""
    library, stream = FakeNccl(), FakeStream()
    monkeypatch.setattr(nccl_module, "Nccl", lambda: library)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda value: torch.no_grad())
    return NcclLine(CPU, workers=2, seconds=0.02), library, stream


def test_the_calls_of_nccl(nccl_line):
    """As vLLM's workers expect them: a sum of one number when all are there, then a broadcast for each update."""
    line, library, stream = nccl_line
    settings = line.settings()
    assert settings["world_size"] == 3 and settings["rank_offset"] == 1 and settings["packed"]
    assert settings["nccl_unique_id_b64"].startswith("AAECAwQF")
    line.join()
    flat = torch.zeros(7, dtype=torch.uint8)
    line.send(flat)
    line.close()
    line.close()
    begin, total, sent, end = library.calls
    assert (begin[0], begin[2], begin[4]) == ("ncclCommInitRank", 3, 0)
    assert (total[0], *total[3:6]) == ("ncclAllReduce", 1, 7, 0)  # one number of float32, summed
    place = flat.data_ptr()
    assert sent[:6] == ("ncclBroadcast", place, place, 7, 1, 0) and sent[-1] == 5  # bytes of rank 0
    assert end[0] == "ncclCommAbort"
    stream.is_done = False
    with pytest.raises(NcclError, match=r"did not take 7 bytes in 0\.02 s"):
        line.send(flat)


def test_the_library_of_nccl():
    """What of it needs no GPU: its version and the name of a group."""
    try:
        nccl = Nccl()
    except NcclError as error:
        pytest.skip(str(error))
    assert nccl.version() == int("{}{:02}{:02}".format(*torch.cuda.nccl.version()))
    assert len(nccl.name()) == 128 != nccl.name() and nccl.name() != nccl.name()
    with pytest.raises(NcclError, match="ncclCommInitRank: "):
        nccl.call("ncclCommInitRank", None, 2, nccl_module._Name(), 0)
