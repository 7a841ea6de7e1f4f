"""The server's command line."""

from __future__ import annotations

import pytest

from qwenvl.vllm_server.settings import parse
from qwenvl.vllm_server.wire.body import secret


def test_the_token_is_random_and_readable_by_its_owner_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("QWENVL_VLLM_TOKEN", raising=False)
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "one"))
    token = secret()
    assert len(token) >= 32 and secret() == token  # in all processes of a user the same
    [file] = (tmp_path / "one").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600 and file.read_text() == token
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "two"))
    assert secret() != token
    monkeypatch.setenv("QWENVL_VLLM_TOKEN", "own")
    assert secret() == "own"


@pytest.mark.parametrize(
    "flags",
    [["--max_model_len", "0"], ["--gpu_memory_utilization", "1.5"], ["--cache_gb", "0"], ["--max_num_seqs", "x"]],
)
def test_what_cannot_be_is_refused(flags, capsys):
    with pytest.raises(SystemExit):
        parse(["m", *flags])
    assert flags[0] in capsys.readouterr().err
