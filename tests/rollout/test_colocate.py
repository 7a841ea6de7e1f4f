"""A server as a child: started when it is needed, again where it died, and gone with its parent."""

from __future__ import annotations

import gc
import os
import signal
import sys

import pytest
import torch

from qwenvl.rollout import servers
from qwenvl.rollout.local import LocalEngine
from qwenvl.rollout.options import SamplingOptions
from qwenvl.rollout.servers import ColocatedServer, ServerRefusedError, server_command
from qwenvl.rollout.vllm import vllm_engine
from qwenvl.vllm_server.wire import Health, pack

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


def test_a_child_is_started_killed_and_started_again():
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
    assert first.startswith("started with broken --dtype float32 --port 0 --with_parent --ready_file")
    assert last == "there is no such model"


def test_its_environment_is_of_its_own(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("MASTER_ADDR", "here")
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert not {"RANK", "MASTER_ADDR", "VIRTUAL_ENV"} & set(servers._environment(CPU))
    assert servers._environment(torch.device("cuda", 1))["CUDA_VISIBLE_DEVICES"] == "6"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert servers._environment(torch.device("cuda", 1))["CUDA_VISIBLE_DEVICES"] == "1"


def test_from_options_to_servers(monkeypatch, tmp_path, tiny_pair):
    model, processor = tiny_pair()
    local = LocalEngine(processor.tokenizer, model)
    monkeypatch.setenv("QWENVL_VLLM_ENV", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"bash scripts/serve_vllm\.sh --build"):
        server_command()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    given = {"process": 0, "dtype": torch.bfloat16, "max_tokens": 700}
    options = SamplingOptions(rollout_engine="vllm_colocate", vllm_gpu_memory=0.3)
    engine = vllm_engine(options, local, model="some/model", device=torch.device("cuda", 0), **given)
    (server,) = engine._servers.servers
    words = "some/model --dtype bfloat16 --gpu_memory_utilization 0.3 --max_model_len 700"
    assert server._command[:3] == [str(tmp_path / "bin" / "python"), "-m", "qwenvl.vllm_server"]
    assert server.sleeps and " ".join(server._command[3:]) == f"{words} --port 0 --with_parent --sleeps"
    with pytest.raises(ValueError, match="this model is of none"):
        vllm_engine(options, local, model="", device=CPU, **given)
