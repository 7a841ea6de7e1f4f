"""The server's command line."""

from __future__ import annotations

import pytest

from qwenvl.vllm_server.settings import is_loopback, parse


@pytest.mark.parametrize("host, alone", [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("localhost", True)])
def test_addresses_of_this_machine(host, alone, monkeypatch):
    monkeypatch.delenv("QWENVL_VLLM_TOKEN", raising=False)
    assert is_loopback(host) and parse(["m", "--host", host]).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "gpu-7"])
def test_other_addresses_need_a_token(host, monkeypatch, capsys):
    monkeypatch.delenv("QWENVL_VLLM_TOKEN", raising=False)
    with pytest.raises(SystemExit) as caught:
        parse(["m", "--host", host])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"--host {host} can be reached from other machines" in said and "$QWENVL_VLLM_TOKEN" in said
    monkeypatch.setenv("QWENVL_VLLM_TOKEN", "secret")
    assert parse(["m", "--host", host]).token == "secret"


@pytest.mark.parametrize(
    "flags",
    [["--max_model_len", "0"], ["--gpu_memory_utilization", "1.5"], ["--cache_gb", "0"], ["--max_num_seqs", "x"]],
)
def test_what_cannot_be_is_refused(flags, capsys):
    with pytest.raises(SystemExit):
        parse(["m", *flags])
    assert flags[0] in capsys.readouterr().err
