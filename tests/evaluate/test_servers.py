"""The commands that ask a model can have it answer by servers: with its own weights, and the same greedy answers."""

import pytest

from qwenvl.cli import main
from qwenvl.runlog import read_evaluation, read_samples

SETTINGS = ("--use_cpu", "--generation_max_length", "6", "--base_interval", "0.5", "--seed", "3")


@pytest.fixture
def served(tiny_checkpoint, fake):
    """A checkpoint, and the flags that name a server, which begins with other weights."""
    server = fake(initializer_range=0.1)
    return (
        str(tiny_checkpoint(initializer_range=0.1)),
        server,
        ["--rollout_engine", "vllm_server", "--vllm_server", server.address],
    )


def test_an_evaluation(served, tmp_path, capsys, never_at_full_size):
    model, server, flags = served
    for name, more in (("local", []), ("served", flags)):
        assert main(["evaluate", model, "example", *SETTINGS, *more, "--output_dir", str(tmp_path / name)]) == 0
    local, ours = (read_samples(tmp_path / name) for name in ("local", "served"))
    assert len(ours) == 5 and {key: each.completion for key, each in ours.items()} == {
        key: each.completion for key, each in local.items()
    }
    assert (
        server.asked and read_evaluation(tmp_path / "served")["protocol"]["settings"]["rollout_engine"] == "vllm_server"
    )


def test_several_processes_would_fight_over_a_server(served, tmp_path, capsys, monkeypatch):
    from qwenvl.config.grpo_config import GRPOConfig

    model, _, flags = served
    monkeypatch.setattr(GRPOConfig, "world_size", 2)
    assert main(["evaluate", model, "example", *SETTINGS, *flags, "--output_dir", str(tmp_path / "out")]) == 2
    assert "--rollout_engine vllm_server evaluates in one process" in capsys.readouterr().err
