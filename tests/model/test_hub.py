"""Names on the hub: the cache, one short request, and one sentence where neither helps."""

from __future__ import annotations

import shutil
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from qwenvl.model import hub
from qwenvl.model.loading import load_model, load_processor

NAME = "org/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def online(monkeypatch):
    """The hub may be asked, at an address where nothing listens until a test sets another."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    hub._connection_problem.cache_clear()
    yield
    hub._connection_problem.cache_clear()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(cache: Path, folder: Path, without: str = "") -> Path:
    """Copy a checkpoint into the cache as a download would, and return its folder there."""
    model = cache / "models--org--model"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    ignored = shutil.ignore_patterns(without) if without else None
    return Path(shutil.copytree(folder, model / "snapshots" / COMMIT, ignore=ignored))


def test_no_hub_and_an_empty_cache_end_with_one_sentence(online, cache):
    with pytest.raises(OSError, match=r"127\.0\.0\.1:9.*hf download org/model --local-dir") as told:
        hub.require_model(NAME)
    assert len(str(told.value).splitlines()) == 1


def test_a_model_in_the_cache_is_loaded_without_the_hub(online, cache, tiny_checkpoint, monkeypatch, caplog):
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # set by the test: the environment is as it was afterwards
    folder = put(cache, tiny_checkpoint())
    assert hub.cached_folder(NAME) == folder
    assert load_model(NAME).config.model_type == load_model(folder).config.model_type
    assert load_processor(NAME).tokenizer.get_vocab() == load_processor(folder).tokenizer.get_vocab()
    assert [NAME in each.message for each in caplog.records].count(True) == 1  # said once


def test_weights_that_the_cache_lacks_are_named(online, cache, tiny_checkpoint, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    put(cache, tiny_checkpoint(), without="*.safetensors")
    hub.require_model(NAME)  # its prompts can be made
    with pytest.raises(OSError, match="org/model: its weights are not all in the cache"):
        load_model(NAME)


class Refuses(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(403)
        self.end_headers()

    def log_message(self, *args):
        pass


def test_any_answer_shows_that_the_hub_is_there(online, cache, monkeypatch):
    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert hub.hub_problem() is None
        hub.require_model(NAME)  # whether it exists is for the hub to say
        server.shutdown()


def test_a_hub_that_never_answers_is_waited_for_once(online, cache, monkeypatch):
    asked = []
    never = Event()
    monkeypatch.setattr(hub, "SECONDS", 0.01)
    monkeypatch.setattr(hub, "_ask", lambda address: asked.append(address) or never.wait())
    for _ in range(3):
        with pytest.raises(OSError, match="no answer from"):
            hub.require_model(NAME)
    never.set()
    assert len(asked) == 1
