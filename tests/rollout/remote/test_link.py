"""Weights that go from device to device: the same ones as by a file, in parts, and links that break."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from qwenvl.rollout.remote import link as link_module
from qwenvl.rollout.remote import weights as weights_module
from qwenvl.rollout.remote.link import Link, kind_of_link
from qwenvl.rollout.remote.server import Server, ServerLostError, ServerRefusedError
from qwenvl.vllm_server.wire.link import KINDS
from tests.rollout.remote.test_weights import language_model


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
    Link(Server(server.address), server.health(), "gloo", 5.0)
    changed(model)
    engine.sync(model, 1)
    assert_given(server, model)
    assert len(server.links) == 3


def test_a_link_that_breaks_is_told_and_not_used_again(fake, monkeypatch):
    """This end fails while the server waits for it."""
    server = fake()
    link = Link(Server(server.address), server.health(), "gloo", 3.0)

    def fail(self, flat):
        self.close()
        raise RuntimeError("brought about by the test")

    monkeypatch.setattr(link_module.LinkGroup, "broadcast", fail)
    with pytest.raises(ServerLostError):
        link.put(link_module.WeightsRequest(1, None, shapes={"a": [2]}), torch.zeros(8, dtype=torch.uint8))
    assert link.closed


@pytest.mark.parametrize(
    ("address", "nccl", "device", "kind"),
    [
        ("localhost:1", 0, "cpu", "gloo"),
        ("localhost:1", 23007, "cuda", "nccl"),
        ("gpu-7:1", 0, "cpu", "on a CPU of another host"),
        ("gpu-7:1", 23007, "cuda", "on a GPU of another host"),
        ("localhost:1", 23007, "cpu", "on a GPU of this host and the policy on a CPU"),
        ("localhost:1", 22809, "cuda", "NCCL 22809, this process 23007"),
    ],
)
def test_which_kind_of_link_there_is(monkeypatch, address, nccl, device, kind):
    monkeypatch.setattr(link_module, "nccl_version", lambda: 23007)
    ask = Server(address), SimpleNamespace(nccl=nccl, workers=2), torch.device(device)
    if kind in KINDS:
        assert kind_of_link(*ask) == kind
    else:
        with pytest.raises(ServerRefusedError, match=f"{kind}.*leave out --vllm_weights direct"):
            kind_of_link(*ask)
