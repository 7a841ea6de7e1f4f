"""The options that an engine has, and the values that are refused."""

import pytest

from qwenvl.config.settings import TrainingSettings
from qwenvl.rollout.options import host_and_port


def test_addresses_are_read_as_host_and_port():
    assert host_and_port("127.0.0.1:8200") == ("127.0.0.1", 8200) == host_and_port("http://127.0.0.1:8200/")
    assert host_and_port("[::1]:8200") == ("::1", 8200)
    more = ("host:80/v1", "[::1:80", "host:80?x=1", "me@host:80")
    for wrong in ("127.0.0.1", ":80", "host:port", "", "https://host:80", *more):
        with pytest.raises(ValueError, match="expected HOST:PORT"):
            host_and_port(wrong)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"rollout_engine": "vllm_server"}, "needs --vllm_server HOST:PORT"),
        ({"vllm_server": ["a:1"]}, "--vllm_server has no effect without --rollout_engine vllm_server"),
        ({"rollout_engine": "vllm_colocate", "vllm_server": ["a:1"]}, "--vllm_server has no effect"),
        ({"vllm_patience": 1.0}, "--vllm_patience has no effect without --rollout_engine vllm_server or vllm_colocate"),
        ({"vllm_deadline": 1.0}, "--vllm_deadline has no effect"),
        (
            {"rollout_engine": "vllm_server", "vllm_server": ["a:1"], "vllm_gpu_memory": 0.5},
            "--vllm_gpu_memory has no effect without --rollout_engine vllm_colocate",
        ),
        ({"rollout_engine": "vllm_colocate", "async_rollouts": 1}, "--async_rollouts 1 needs --rollout_engine vllm_s"),
        ({"rollout_engine": "vllm_server", "vllm_server": ["a"]}, "expected HOST:PORT"),
        ({"rollout_engine": "vllm_colocate", "compile_decoding": True}, "--compile_decoding has no effect"),
        (
            {"rollout_engine": "vllm_colocate", "ds3_gather_for_generation": False},
            "--ds3_gather_for_generation has no effect without --rollout_engine local",
        ),
        (
            {"compile_decoding": True, "ds3_gather_for_generation": False},
            "--compile_decoding has no effect without --ds3_gather_for_generation",
        ),
        ({"vllm_speculative": "ngram:4"}, "--vllm_speculative has no effect .*: drafts of the local .* --draft_tokens"),
        (
            {"rollout_engine": "vllm_server", "vllm_server": ["a:1"], "vllm_speculative": "ngram:4"},
            "--vllm_speculative has no effect without --rollout_engine vllm_colocate: .* --speculative",
        ),
        ({"rollout_engine": "vllm_colocate", "vllm_speculative": "ngram"}, "--vllm_speculative: expected ngram:TOKENS"),
        ({"rollout_engine": "vllm_colocate", "vllm_speculative": "ngram:129"}, "--vllm_speculative: .* 1 to 128"),
        ({"rollout_engine": "vllm_colocate", "vllm_speculative": "suffix:4"}, "--vllm_speculative: .* 'suffix:4'"),
        ({"draft_tokens": 4, "rollout_engine": "vllm_colocate"}, "--draft_tokens has no effect"),
        ({"draft_tokens": 4, "compile_decoding": True}, "--draft_tokens cannot be used with --compile_decoding"),
        ({"draft_tokens": 4, "ds3_gather_for_generation": False}, "--draft_tokens has no effect"),
        ({"draft_tokens": -1}, "--draft_tokens"),
        ({"rollout_engine": "sglang"}, "must be one of local, vllm_server, vllm_colocate"),
    ],
)
def test_engine_flags_without_effect_are_refused(settings, told):
    with pytest.raises(ValueError, match=told):
        TrainingSettings(**settings)
