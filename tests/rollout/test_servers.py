"""No prompt is lost when servers die, raise or are slow; and a server runs as a child of the run."""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qwenvl.rollout import engine as engine_module
from qwenvl.rollout import servers as servers_module
from qwenvl.rollout.engine import EngineLostError, SamplingParams, SamplingRequest, WeightsLostError, lost_together
from qwenvl.rollout.local import LocalEngine
from qwenvl.rollout.options import EngineOptions
from qwenvl.rollout.servers import ColocatedServer, Server, ServerLostError, ServerRefusedError, server_command
from qwenvl.rollout.vllm import vllm_engine
from qwenvl.vllm_server.wire import TOKEN, Health, SampleRequest, pack, secret
from tests.rollout.served import WAYS, assert_same, engine_of, local_completions


@pytest.fixture
def scene(tiny_pair, fake, random_prompts):
    """``scene(servers)`` -> the fakes, and a function that samples and holds the completions to the local ones."""
    model, processor = tiny_pair(initializer_range=0.1)
    inputs, params = random_prompts(model, ["tvt", "t", "tit", "tt"]), WAYS["sampled"]
    expected = local_completions(model, processor, inputs, 2, params, 3)

    def make(servers: int, **settings):
        fakes = [fake(initializer_range=0.1) for _ in range(servers)]
        engine = engine_of(model, processor, fakes, **settings)
        engine.sync(model, 0)

        def sample():
            (rollout,) = engine.sample(model, SamplingRequest([inputs], 2, params, 3))
            assert_same(rollout, expected, 2)
            return rollout

        return fakes, engine, sample

    return make


@pytest.mark.parametrize("fault", ["drop", "die", "engine", "busy"])
def test_prompts_of_a_lost_server_go_to_another(scene, fault):
    (one, two), _, sample = scene(2)
    one.faults = [fault]
    assert sample().boots == ({one.boot, two.boot} if fault in ("drop", "busy") else {two.boot})
    assert sum(len(request.prompts) for request in [*one.asked, *two.asked]) == 4


ANSWERS_THAT_ARE_NONE = {
    "version": (lambda answer: replace(answer, version=answer.version + 1), "weights of version"),
    "one less": (lambda answer: replace(answer, ids=answer.ids[1:]), "7 completions in ids, and 8 were asked for"),
    "one more": (lambda answer: replace(answer, logprobs=[*answer.logprobs, [0.0]]), "9 completions in logprobs"),
    "empty": (lambda answer: changed(answer, [], []), "completion 0 has 0 tokens, and 1 to 8 were asked for"),
    "long": (lambda answer: changed(answer, [7] * 9, [-1.0] * 9), "completion 0 has 9 tokens, and 1 to 8"),
    "log-probs": (lambda answer: changed(answer, [7, 7], [-1.0]), "other than as many finite log-probs"),
    "NaN": (lambda answer: changed(answer, [7], [math.nan]), "other than as many finite log-probs"),
    "reason": (lambda answer: replace(answer, finish_reasons=["banana"] * 8), "no known reason: 'banana'"),
}


def changed(answer, ids, logprobs):
    """The answer with another first completion."""
    return replace(answer, ids=[ids, *answer.ids[1:]], logprobs=[logprobs, *answer.logprobs[1:]])


@pytest.mark.parametrize("kind", ANSWERS_THAT_ARE_NONE)
def test_an_answer_that_is_none_to_the_request_ends_the_engine(scene, kind):
    (one,), _, sample = scene(1)
    fault, message = ANSWERS_THAT_ARE_NONE[kind]
    one.faults = [fault]
    with pytest.raises(ServerRefusedError, match=f"{one.address}: /sample: .*{message}"):
        sample()


def test_a_forbidden_token_in_an_answer_ends_the_engine(scene, tiny_pair):
    """The next pass would take a vision token for a clip."""
    model, _ = tiny_pair(initializer_range=0.1)
    (one,), _, sample = scene(1)
    token = model.config.video_token_id
    one.faults = [lambda answer: changed(answer, [7, token], [-1.0, -1.0])]
    with pytest.raises(ServerRefusedError, match=f"completion 0 has token {token}, which is never to be sampled"):
        sample()


def test_a_server_that_does_not_answer_in_time_is_lost(monkeypatch):
    monkeypatch.setattr(servers_module, "MARGIN_SECONDS", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = Server(f"127.0.0.1:{silent.getsockname()[1]}", deadline=0.2)
        with pytest.raises(ServerLostError, match=rf"{server.address}: no answer to /sample after \d of at most 0.2 s"):
            server.sample(SampleRequest(1, 1, SamplingParams(1), [], [], []))


def test_a_new_server_is_given_everything_and_goes_on(scene, fake):
    (one,), _, sample = scene(1, patience=20.0)
    sample()
    one.faults = ["die"]
    port = one.port
    started = []

    def start_again():
        while True:
            try:
                started.append(fake(port=port, initializer_range=0.1))
                return
            except OSError:  # the port is not free yet
                time.sleep(0.02)

    threading.Timer(0.3, start_again).start()
    assert sample().boots == {started[0].boot} != {one.boot}
    assert [names for _, names in started[0].given] == [names for _, names in one.given]


def test_a_server_that_dies_while_it_is_given_weights_is_left_out(tiny_pair, scene):
    (one, two), engine, sample = scene(2)
    one.faults = ["die weights"]
    model, _ = tiny_pair(initializer_range=0.1)
    engine.sync(model, 1)
    assert sample().boots == {two.boot}


def test_losing_all_servers_ends_the_engine(scene):
    fakes, _, sample = scene(2)
    for each in fakes:
        each.die()
    with pytest.raises(EngineLostError, match=r"no server samples any more.*0\.3 s.*refused.*refused"):
        sample()


def test_prompts_that_bring_down_every_server_end_the_engine(scene):
    (one,), _, sample = scene(1)
    one.faults = ["busy"] * 9
    with pytest.raises(EngineLostError, match=r"4 prompts were sent 4 times"):
        sample()


def test_a_request_ahead_is_lost_with_its_server(tiny_pair, scene, random_prompts, fake):
    """A thread has no weights to give: the error comes at once, and who has some may ask again."""
    (one,), engine, _ = scene(1, patience=20.0)
    model, _ = tiny_pair(initializer_range=0.1)
    ahead = engine.request(model, SamplingRequest([random_prompts(model, ["t"])], 2, WAYS["sampled"], 3))
    one.version, one.boot = 0, "another"
    with pytest.raises(WeightsLostError, match="started again"):
        ahead()


def test_processes_lose_weights_together_unless_one_lost_more(scene, monkeypatch):
    _, engine, _ = scene(1)
    for errors, kind in (
        ([None, WeightsLostError("a")], WeightsLostError),
        ([WeightsLostError("a"), EngineLostError("b")], EngineLostError),
    ):
        monkeypatch.setattr(engine_module, "gather_object", lambda own, errors=errors: errors)
        with pytest.raises(EngineLostError) as raised, lost_together(engine):
            pass
        assert type(raised.value) is kind


def test_a_server_with_another_model_is_refused_with_the_difference(tiny_pair, fake):
    model, processor = tiny_pair()
    for other, told in (
        ({"family": "qwen3_vl"}, "its model type is qwen3_vl, the policy's qwen2_5_vl"),
        ({"num_layers": 3}, "its num_hidden_layers is 3, the policy's 2"),
        ({"tie_word_embeddings": False}, "its head tied to the embeddings is False, the policy's True"),
    ):
        server = fake(**other)
        with pytest.raises(ServerRefusedError, match=told):
            engine_of(model, processor, [server]).sync(model, 0)
        assert not server.given


# ---- a server in a child process

CPU = torch.device("cpu")
# What a server says of itself, without what makes it slow to start.
CHILD = """
import http.server, os, sys
words = sys.argv[1:]
print("started with", *words, flush=True)
if words[0] == "broken":
    sys.exit("there is no such model")
health = HEALTH.replace(b"BOOT0000", b"%08d" % os.getpid())
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(health)
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
ready = words[words.index("--ready_file") + 1]
with open(ready + ".part", "w") as file:
    file.write(f"http://127.0.0.1:{server.server_port}")
os.replace(ready + ".part", ready)
server.serve_forever()
""".replace("HEALTH", repr(pack(Health("BOOT0000", 0, "a model", {}, "float32"))))
COMMAND = [sys.executable, "-c", CHILD]


def test_a_child_is_started_killed_and_started_again(capsys):
    server = ColocatedServer(["model"], CPU, command=COMMAND)
    assert server._process is None  # it starts when it is first needed
    boots = []
    for _ in range(2):
        boots += [server.health().boot, server.health().boot]
        process = server._process
        assert int(boots[-1]) == process.pid and os.getsid(process.pid) == process.pid  # Ctrl-C is not for it
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert boots[0] == boots[1] != boots[2] == boots[3]
    told = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0].split(" after")[0] for line in told] == 2 * ["starting vLLM", "vLLM has started"]
    server.health()
    last = server._process
    del server
    gc.collect()
    assert last.poll() is not None  # a server that nobody asks any more leaves the GPU


def test_a_child_that_does_not_start_says_why():
    server = ColocatedServer(["broken", "--dtype", "float32"], CPU, command=COMMAND)
    with pytest.raises(ServerRefusedError) as raised:
        server.health()
    assert "did not start: status 1" in str(raised.value)
    first, last = str(raised.value).splitlines()[-2:]
    assert first.startswith(f"started with broken --dtype float32 --port 0 --with_parent {os.getpid()} --ready_file")
    assert last == "there is no such model"


def test_a_child_server_gets_the_gpu_of_the_trainer_and_no_variable_of_the_launcher(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("MASTER_ADDR", "here")
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert not {"RANK", "MASTER_ADDR", "VIRTUAL_ENV"} & set(servers_module._environment(CPU, tmp_path))
    second = torch.device("cuda", 1)
    assert servers_module._environment(second, tmp_path)["CUDA_VISIBLE_DEVICES"] == "6"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert servers_module._environment(second, tmp_path)["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_child_server_finds_this_package_and_no_other_beside_it():
    """Beside an installed package are torch and the like, which vLLM has in versions of its own."""
    server = ColocatedServer(["model"], CPU, command=COMMAND)
    packages = Path(servers_module._environment(CPU, server._packages)["PYTHONPATH"])
    assert [each.name for each in packages.iterdir()] == ["qwenvl"]
    assert (packages / "qwenvl" / "vllm_server" / "__main__.py").is_file()


@pytest.mark.parametrize("token", ["secret\nword", "секрет", " "])
def test_a_token_that_no_header_can_have_is_refused_without_showing_it(monkeypatch, token):
    monkeypatch.setenv(TOKEN, token)
    with pytest.raises(ServerRefusedError) as refused:
        Server("127.0.0.1:1").health()
    assert f"${TOKEN}: the token must have printable characters of ASCII alone" in str(refused.value)
    assert token.strip() not in str(refused.value) or not token.strip()


def test_the_line_end_behind_a_token_does_not_count(monkeypatch, tmp_path):
    monkeypatch.delenv(TOKEN, raising=False)
    monkeypatch.setattr("qwenvl.vllm_server.wire.cache_root", lambda: tmp_path)
    (tmp_path / "vllm-token").write_text("word\n")
    assert secret() == "word"


def test_options_become_the_command_of_a_colocated_server(monkeypatch, tmp_path, tiny_pair):
    model, processor = tiny_pair()
    local = LocalEngine(processor.tokenizer, model)
    monkeypatch.setenv("QWENVL_VLLM_ENV", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"bash scripts/serve_vllm\.sh --build"):
        server_command()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    given = {"process": 0, "dtype": torch.bfloat16, "max_tokens": 700}
    options = EngineOptions(rollout_engine="vllm_colocate", vllm_gpu_memory=0.3, vllm_speculative="ngram:4")
    engine = vllm_engine(options, local, model="some/model", device=torch.device("cuda", 0), **given)
    (server,) = engine._servers.servers
    words = "some/model --dtype bfloat16 --gpu_memory_utilization 0.3 --max_model_len 700 --speculative ngram:4"
    assert server._command[:3] == [str(tmp_path / "bin" / "python"), "-m", "qwenvl.vllm_server"]
    assert server.sleeps and " ".join(server._command[3:]) == f"{words} --port 0 --with_parent {os.getpid()} --sleeps"
    with pytest.raises(ValueError, match="this model is of none"):
        vllm_engine(options, local, model="", device=CPU, **given)
