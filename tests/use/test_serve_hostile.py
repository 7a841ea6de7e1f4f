"""``qwenvl serve`` and hostile requests: mistakes, bombs, files of others, work that never ends."""

import base64
import io
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
from PIL import Image

from qwenvl.data.errors import BadMediaError, MediaTimeout
from qwenvl.data.media.images import load_image
from qwenvl.use.answers import StopWatch
from qwenvl.use.chat_request import ApiError
from qwenvl.use.fetch import BusyError, Lookups, fetch, is_public
from qwenvl.use.in_time import DatasetInTime
from qwenvl.use.pictures import PictureReader
from qwenvl.use.request_folder import RequestFolder
from qwenvl.use.turns import FairPool
from tests.made_clips import slow_gif
from tests.use.running import (
    CHAT,
    QUESTION,
    Dripping,
    Flooding,
    ask,
    connected,
    data_url,
    head,
    held_until,
    image,
    layers_of,
    options_of,
    raw,
    status_of,
    video,
)

SLOW_CLIP = b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000
"""The answer of a server that sends a byte now and then."""

# ---- what a request can ask for


@pytest.mark.parametrize(
    "more",
    [
        {"seed": int("9" * 4000)},
        {"metadata": [int("9" * 101)]},
        {"seed": -(2**63) - 1},
        {"temperature": 1e-308},
        {"temperature": float("nan")},
        {"top_p": float("inf")},
        {"temperature": 10**400},
        {"stop": [str(n) for n in range(2000)]},
        {"stop": "x" * 5000},
        {"stop": ["\ud800"]},
        {"model": "\ud800"},
        {"\ud800": 1},
        {"model": "x" * 10**5},
        {"model": 1},
        {"model": {"id": "x"}},
        {"y" * 10**5: 1},
        {"max_tokens": 10**30},
        {"n": True},
        {"n": "1"},
        {"tools": [{"deep": json.loads("[" * 900 + "]" * 900)}]},
    ],
    ids=lambda more: ascii(*more)[:20],
)
def test_bad_values_of_a_request_are_client_errors_with_a_short_message(running, more):
    status, answer = raw(running, "POST", CHAT, ask("Hi", **more))
    assert status in (400, 404), answer
    assert len(answer["error"]["message"]) <= 2000, answer
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_bodies_are_utf8_without_halves_of_characters(running, encoding):
    body = '{"messages": [{"role": "user", "content": "\ud800"}]}'.encode(encoding, "surrogatepass")
    assert raw(running, "POST", CHAT, body)[0] == 400
    body = b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00"}], "max_tokens": 2}'  # a whole one
    assert raw(running, "POST", CHAT, body)[0] == 200


@pytest.mark.parametrize(
    "content",
    [
        *("\ud800", [{"type": "text", "text": "\udfff"}], [video("file:///\ud800")], {"a": 1}, 7, [None], [[]]),
        *([{"type": {"a": 1}}], [{"type": ["video_url"]}], [{"type": "text"}], [{"type": "text", "text": 7}]),
        *([video("data:video/mp4;base64,%%%")], [video("file:///%00")], [video("\0")], [video("a" * 5000)]),
        *([{"type": "video_url", "video_url": 7}], [{"type": "image_url", "image_url": {"url": {"url": "x"}}}]),
        [{"type": "text", "text": "a"}] * 20_000,
    ],
    ids=lambda content: ascii(content)[:60],
)
def test_contents_of_other_types_are_refused(running, content):
    status, answer = raw(running, "POST", CHAT, ask(content))
    assert status == 400 and answer["error"]["type"] == "invalid_request_error", answer
    assert running.is_idle()


@pytest.mark.parametrize(
    ("turn", "named"),
    [
        ({"content": [video("one.mp4") | {"fps": 0.5}]}, "messages[0].content[0].fps"),
        ({"content": [{"type": "text", "text": "Hi"}, video("one.mp4") | {"nframes": 2}]}, ".content[1].nframes"),
        ({"content": [image("part.png") | {"max_pixels": 100}]}, "messages[0].content[0].max_pixels"),
        (
            {"content": [{"type": "image_url", "image_url": {"url": "part.png", "detail": "low"}}]},
            "messages[0].content[0].image_url.detail",
        ),
        ({"content": [video("one.mp4") | {"type": "text", "text": "Hi"}]}, "content[0].video_url"),
        ({"content": "Hi", "tool_calls": [{"id": "a"}]}, "messages[0].tool_calls"),
        ({"content": "Hi", "x" * 10**5: 1}, "messages[0].xxx"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_of_turns_and_parts_are_refused_by_name(running, turn, named):
    body = {"messages": [{"role": "user", **turn}, {"role": "user", "content": "Which?"}], "max_tokens": 2}
    status, answer = raw(running, "POST", CHAT, json.dumps(body).encode())
    message = answer["error"]["message"]
    assert status == 400 and named in message and "leave it out: " in message and len(message) < 400, answer
    assert answer["error"]["code"] == "unsupported_parameter"


def test_settings_of_turns_and_parts_that_change_nothing_are_accepted(running):
    picture = {"type": "image_url", "image_url": {"url": "part.png", "detail": "auto"}, "cache_control": {"type": "x"}}
    clip = video("one.mp4") | {"fps": None, "uuid": "clip 1"}
    said = {"role": "assistant", "content": "Yes?", "tool_calls": None, "refusal": None, "annotations": []}
    turns = [
        {"role": "developer", "content": "You inspect assembly."},
        {"role": "user", "name": "me", "content": [picture, clip, {"type": "text", "text": "Hello."}]},
        said,
        {"role": "user", "content": "Go."},
    ]
    body = {"messages": turns, "max_tokens": 2}
    status, answer = raw(running, "POST", CHAT, json.dumps(body).encode())
    assert status == 200, answer


def test_a_key_that_a_request_has_twice_is_refused(running):
    body = b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "max_tokens": 3}'
    status, answer = raw(running, "POST", CHAT, body)
    assert status == 400 and "'max_tokens' 2 times" in answer["error"]["message"]


def test_a_body_of_many_values_is_not_parsed(running, monkeypatch):
    parsed = SimpleNamespace(loads=lambda *_, **__: pytest.fail("it was parsed"))
    monkeypatch.setattr("qwenvl.use.chat_request.json", parsed)
    status, answer = raw(running, "POST", CHAT, b"[" + b"[]," * 220_000 + b"0]")
    assert status == 400 and "200,000" in answer["error"]["message"]


def test_a_prompt_has_to_fit_the_positions_of_the_model(running, monkeypatch):
    tokens = running.ask(QUESTION, max_tokens=4).usage.prompt_tokens
    monkeypatch.setattr(running.server.prompts.reader, "positions", tokens + 4)
    assert running.ask(QUESTION, max_tokens=4).usage.prompt_tokens == tokens
    with pytest.raises(openai.BadRequestError, match=str(tokens)) as raised:
        running.ask(QUESTION, max_tokens=5)
    assert raised.value.code == "context_length_exceeded"
    monkeypatch.setattr(running.server.collator, "process", lambda *_: pytest.fail("it was tokenized"))
    for text in ("x" * (8 * (tokens + 4) + 1), "🙂" * (2 * (tokens + 4) + 1)):
        with pytest.raises(openai.BadRequestError, match="bytes of text"):
            running.ask(text)


def test_stop_strings_end_an_answer_without_a_look_at_the_vocabulary(running, monkeypatch):
    monkeypatch.setattr("qwenvl.rollout.local.StopStrings", lambda *_: pytest.fail("the vocabulary was looked at"))
    whole = running.ask(QUESTION, logprobs=True).choices[0]
    pieces = [each.token for each in whole.logprobs.content]
    decode = running.server.collator.processor.tokenizer.decode
    texts = [decode(whole.token_ids[:n], skip_special_tokens=True) for n in range(len(pieces) + 1)]
    new = [n for n in range(1, len(pieces)) if pieces[n].isprintable() and pieces[n] not in texts[n]]
    place = next(n for n in new if pieces[n] in texts[n + 1])
    drawing = running.server.sampling.respondent.sample.engine.drawing
    counted = drawing.drawn
    ended = running.ask(QUESTION, stop=["nowhere", pieces[place]], logprobs=True)
    [choice] = ended.choices
    assert choice.message.content == whole.message.content.partition(pieces[place])[0]
    assert choice.finish_reason == "stop" and ended.usage.completion_tokens == place + 1
    assert choice.token_ids == whole.token_ids[: place + 1] and len(choice.logprobs.content) == place + 1
    assert drawing.drawn - counted == place + 1  # nothing is sampled behind it
    streamed = [*running.ask(QUESTION, stop=[pieces[place]], stream=True)]
    assert "".join(each.choices[0].delta.content for each in streamed) == choice.message.content


def test_a_long_text_keeps_no_other_waiting(running, monkeypatch):
    begun, free = threading.Event(), threading.Event()
    monkeypatch.setattr("qwenvl.use.prompts.LONG_TEXT", 2000)
    short = running.ask(QUESTION, max_tokens=2).usage.prompt_tokens
    collator = running.server.prompts._long_collator
    process = type(collator).process

    def slowly(self, *given):
        if self is collator:
            held_until(free, begun)
        return process(self, *given)

    monkeypatch.setattr(type(collator), "process", slowly)
    found = []
    asked = threading.Thread(target=lambda: found.append(running.ask("word " * 500, max_tokens=2).usage.prompt_tokens))
    asked.start()
    assert begun.wait(60)
    assert running.ask(QUESTION, max_tokens=2).choices and running.ask(video("one.mp4"), "?", max_tokens=2).choices
    free.set()
    asked.join()
    assert found[0] > short + 500


def test_a_stop_string_over_many_tokens_ends_at_its_last():
    decode = lambda ids: bytes(ids).decode("utf-8", "replace")
    text = "aaä</answer>b".encode()
    watch = StopWatch(("</answer>", "é"), decode)
    assert next(n for n, byte in enumerate(text) if watch.ends_at(byte)) == text.index(b">")


# ---- what a request can hold


def test_a_forward_that_nobody_waits_for_ends_between_two_layers(running, monkeypatch):
    begun, free, later = threading.Event(), threading.Event(), []
    first, *_, last = layers_of(running)
    holds = first.register_forward_pre_hook(lambda *_: held_until(free, begun))
    counts = last.register_forward_pre_hook(lambda *_: later.append(begun.is_set()))
    monkeypatch.setattr(running.server.limits, "max_seconds", 0.3)
    with pytest.raises(openai.APIStatusError) as raised:
        running.ask(QUESTION)
    assert raised.value.status_code == 504 and begun.is_set()
    assert raw(running, "GET", "/health")[0] == 200
    with monkeypatch.context() as patch:
        patch.setattr("qwenvl.use.sampling.HANGING_SECONDS", 0.0)
        status, said = raw(running, "GET", "/health")
    assert status == 503 and said["status"] == "sampling hangs, perhaps in a tool"
    holds.remove()
    free.set()
    monkeypatch.setattr(running.server.limits, "max_seconds", 60.0)
    assert running.ask(QUESTION, max_tokens=1).choices
    counts.remove()
    assert len(later) == 1  # the forward of the second request alone


@pytest.fixture
def fetching(running, monkeypatch):
    """The running server, allowed to fetch media from private addresses."""
    monkeypatch.setattr(running.server.limits, "allow_http", True)
    monkeypatch.setattr(running.server.limits, "allow_private_http", True)
    return running


def test_a_slow_download_ends_at_its_time_limit():
    with (
        Dripping(SLOW_CLIP) as server,
        pytest.raises(ValueError, match="too long"),
    ):
        fetch(server.address, most_bytes=9000, seconds=0.3, allow_private=True)
    assert server.left.wait(30)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "again", "told"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "does not answer as HTTP"),
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", "does not answer as HTTP"),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"a: b\r\n", "does not answer as HTTP"),
        (CHUNKED, b"1\r\nx\r\n", "comes in pieces of less than 512 bytes"),
        (CHUNKED, b"600;" + b"a" * 60_000 + b"\r\n" + b"x" * 0x600 + b"\r\n", "does not answer as HTTP"),
    ],
    ids=["100-continue", "headers", "trailers", "chunks", "chunk-extensions"],
)
def test_what_is_no_content_of_a_download_is_bounded(begin, again, told):
    """Python code follows each of these pieces, and keeps all other threads of the server waiting."""
    with Flooding(begin, again) as server:
        with pytest.raises(ValueError, match=told):
            fetch(server.address, most_bytes=10**8, seconds=60, allow_private=True)
        assert server.left.wait(30)


def test_a_file_in_chunks_is_fetched():
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    with Flooding(CHUNKED + chunk * 20 + b"0\r\n\r\n") as server:
        assert fetch(server.address, most_bytes=10**8, seconds=60, allow_private=True) == b"x" * 0x4000 * 20


def test_slow_downloads_hold_no_other_request(fetching):
    with Dripping(SLOW_CLIP) as server:
        statuses: list[int] = []
        body = ask([video(f"{server.address}/x.mp4")])
        waiting = [
            threading.Thread(target=lambda: statuses.append(raw(fetching, "POST", CHAT, body)[0])) for _ in range(8)
        ]
        for each in waiting:
            each.start()
        while server.asked < 8:
            time.sleep(0.01)
        assert fetching.ask(video("one.mp4"), QUESTION, max_tokens=2).choices and not statuses
        server.ended.set()
        for each in waiting:
            each.join()
    assert statuses == [400] * 8 and fetching.is_idle()


@contextmanager
def slow_download(fetching, answer: bytes = SLOW_CLIP) -> Iterator[socket.socket]:
    """The client of a request whose clip comes slowly. The download ends when it leaves, or before."""
    with Dripping(answer) as server:
        body = ask([video(f"{server.address}/x.mp4")])
        with connected(fetching) as client:
            client.sendall(head(len(body)) + body)
            while not server.asked:
                time.sleep(0.01)
            yield client
        assert server.left.wait(30)  # half of the time that a download may take


def test_a_slow_download_gives_way_to_other_requests(fetching, monkeypatch):
    monkeypatch.setattr("qwenvl.use.places.LONG_ARRIVAL_SECONDS", 0.0)
    monkeypatch.setattr(fetching.server.limits, "max_waiting", 1)
    with slow_download(fetching) as client:
        assert fetching.ask("Hi", max_tokens=2).choices
        assert status_of(client) == 429
    assert fetching.is_idle()


def test_a_download_ends_when_its_client_leaves(fetching):
    with slow_download(fetching):
        pass
    assert fetching.is_idle()


def test_media_of_a_request_live_as_long_as_the_request(running, made_media, tmp_path, monkeypatch):
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))
    (made_media / "media/whole.frames.json").write_text("[]")
    png = base64.b64encode((made_media / "media/part.png").read_bytes()).decode()
    clip = data_url(made_media / "media/one.mp4")
    parts = [{"type": "image", "image": medium} for medium in (png, {"bytes": png})]
    parts.append({"type": "video", "video": clip})
    for hostile in (
        *([part, {"type": "text", "text": "?"}] for part in parts),
        [video(clip), image("data:image/png;base64,AAAA"), {"type": "text", "text": "?"}],
        [image(png), {"type": "text", "text": "?"}],
        [image(f"file://data:image/png;base64,{png}"), {"type": "text", "text": "?"}],
    ):
        assert raw(running, "POST", CHAT, ask(hostile))[0] == 400
        turn = {"from": "human", "value": hostile}
        assert raw(running, "POST", CHAT, json.dumps({"messages": [turn]}).encode())[0] == 400
    assert running.ask(video(clip), QUESTION, max_tokens=2).choices and running.is_idle()
    assert not (tmp_path / "cache").exists() and not [*running.server._folder.iterdir()]


def test_the_folder_of_a_request_is_deleted_by_the_last_thread_that_works_in_it(tmp_path):
    folder = RequestFolder(tmp_path)
    with folder.in_use() as path, folder.in_use():
        (path / "0").write_bytes(b"x")
        folder.end()  # the client has left
        (path / "1").write_bytes(b"y")
    assert not [*tmp_path.iterdir()]
    with pytest.raises(ApiError, match="has ended"), folder.in_use():
        pass
    folder = RequestFolder(tmp_path)
    folder.end()  # nobody works in it
    assert not [*tmp_path.iterdir()]
    # As where a cleaner of temporary files has deleted it.
    RequestFolder(tmp_path / "deleted").end()
    assert stat.S_IMODE((tmp_path / "deleted").stat().st_mode) == 0o700


def test_what_is_written_after_its_client_has_left_does_not_stay(running, monkeypatch):
    """In a folder that is just being deleted it would stay for good."""
    parent = running.server._folder
    began = threading.Event()
    folders: list[int] = []  # when the picture is written

    def written_late(path, target, *given):
        began.set()
        assert running.is_idle()  # the request has ended
        folders.append(len([*parent.iterdir()]))
        Path(target).write_bytes(b"x")
        return 1

    monkeypatch.setattr(running.server.prompts._pictures, "rewrite", written_late)
    body = ask([image("part.png")])
    with connected(running) as client:
        client.sendall(head(len(body)) + body)
        assert began.wait(60)
    while not folders or any(parent.iterdir()):
        time.sleep(0.01)
    assert folders == [1]


def test_a_download_that_its_client_has_left_is_no_file(fetching, monkeypatch):
    """It has no length, and where it is cut off it looks whole."""
    written: list[Path] = []
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: written.append(path))
    with slow_download(fetching, b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 9000):
        time.sleep(2)  # the head has come
    fetching.server.prompts._fetchers.submit(int).result()
    while any(fetching.server._folder.iterdir()):
        time.sleep(0.01)
    assert not written


def test_turns_in_other_forms_name_no_files_of_the_machine(running, made_media):
    part = {"type": "image", "image": str(made_media / "media/part.png")}
    for turn in (
        {"from": "human", "value": [part]},
        {"from": "human", "value": [part], "role": "user", "content": "x"},
        {"role": "user", "content": [{**part, "type": "image"}]},
        {"role": "user", "content": [{"type": "text", "text": "<image>"}], "image": part["image"]},
    ):
        status, answer = raw(running, "POST", CHAT, json.dumps({"messages": [turn]}).encode())
        shown = answer.get("usage", {}).get("prompt_tokens", 0)
        assert status == 400 or shown == running.ask("x").usage.prompt_tokens, answer
    body = {"messages": [{"role": "user", "content": "?"}], "image": part["image"]}
    assert raw(running, "POST", CHAT, json.dumps(body).encode())[0] == 400


def test_an_eps_starts_no_program(running, monkeypatch):
    assert running.ask(image("part.png"), max_tokens=1).choices  # the process that reads pictures waits for others now
    monkeypatch.setattr("PIL.EpsImagePlugin.has_ghostscript", lambda: True)
    monkeypatch.setattr("subprocess.Popen", lambda *words, **_: pytest.fail(f"a program was started: {words}"))
    data = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(data, "EPS")
    url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    assert raw(running, "POST", CHAT, ask([image(url)]))[0] == 400


def test_images_of_a_request_together_have_a_bound(running, tmp_path):
    data = io.BytesIO()
    Image.new("1", (7000, 5000)).save(data, "PNG")  # 35 million pixels in a few kilobytes
    url = image(f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}")
    status, answer = raw(running, "POST", CHAT, ask([url, url]))
    assert status == 400 and "15,000,000" in answer["error"]["message"], answer  # what the first one leaves


def test_a_waiting_request_keeps_no_unpacked_image(running, monkeypatch):
    data = io.BytesIO()
    Image.new("1", (2000, 2000)).save(data, "PNG")  # 12 MB of pixels in a kilobyte
    url = image(f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}")
    kept = []
    made = running.server.prompts._made

    def noted(record, parsed, folder, *given):
        pending = made(record, parsed, folder, *given)
        kept.append(sum(file.stat().st_size for file in folder.path.iterdir()))
        assert pending.batch.records[0].images == record.images and all(map(os.path.isfile, record.images))
        return pending

    monkeypatch.setattr(running.server.prompts, "_made", noted)
    assert running.ask(url, QUESTION, max_tokens=1).choices
    assert kept == [len(data.getvalue())]


def test_a_waiting_request_holds_nothing_that_is_not_read(running, monkeypatch):
    data = base64.b64encode(io.BytesIO(b"GIF89a" + b"x" * 10**5).getvalue()).decode()
    kept = []
    made = running.server.prompts._made

    def noted(record, parsed, folder, *given):
        kept.append(len(repr((parsed, record))))
        return made(record, parsed, folder, *given)

    monkeypatch.setattr(running.server.prompts, "_made", noted)
    large = "\N{GRINNING FACE}" * 8000
    parts = [
        {"type": "text", "text": "Which?", "uuid": large, "cache_control": {large: large}},
        image(f"data:image/gif;base64,{data}") | {"uuid": large},
    ]
    turn = {"role": "user", "name": large, "content": parts}
    body = {"messages": [turn], "max_tokens": 1, "metadata": {"note": large}, "user": large}
    assert raw(running, "POST", CHAT, json.dumps(body).encode())[0] == 400  # the picture is none
    assert kept[0] < 5000
    for role in (large, {"a": large}, [large]):
        body = {"messages": [turn | {"role": role}]}
        status, answer = raw(running, "POST", CHAT, json.dumps(body).encode())
        assert status == 400 and len(json.dumps(answer)) < 2000
    assert len(kept) == 1


def test_an_image_that_takes_for_ever_stops_no_other_request(running, monkeypatch, tmp_path):
    dataset = running.server.prompts._dataset
    monkeypatch.setattr(dataset, "options", replace(dataset.options, decode_timeout=0.3))
    monkeypatch.setattr(running.server.limits, "max_body_mb", 20.0)
    data = slow_gif(tmp_path / "slow.gif", blocks=5_000_000).read_bytes()
    url = image(f"data:image/gif;base64,{base64.b64encode(data).decode()}")
    status, answer = raw(running, "POST", CHAT, ask([url]))
    assert status == 400 and "medium 0: not decoded within" in answer["error"]["message"], answer
    monkeypatch.undo()
    assert running.ask(image("part.png"), QUESTION, max_tokens=2).choices


def test_media_that_take_long_to_read_give_way_to_those_of_others(running, monkeypatch):
    """A few clips of 100 kB can keep all readers busy for minutes."""
    began, free = [], threading.Event()
    load = DatasetInTime.load

    def slowly(dataset, record, *given):
        if record.videos[0].endswith("two.mp4"):
            began.append(record.id)
            while not free.is_set():
                if dataset.is_over():
                    raise MediaTimeout(record.videos[0], "not decoded")
                time.sleep(0.01)
        return load(dataset, record, *given)

    monkeypatch.setattr(DatasetInTime, "load", slowly)
    monkeypatch.setattr("qwenvl.use.in_time.LONG_READING_SECONDS", 0.0)
    monkeypatch.setattr(running.server.prompts, "_readers", FairPool(1, "read"))
    found = []
    slow = threading.Thread(target=lambda: found.append(running.ask(video("two.mp4"), QUESTION, max_tokens=2)))
    slow.start()
    while not began:
        time.sleep(0.01)
    assert running.ask(video("one.mp4"), QUESTION, max_tokens=2).choices, "read while the other one waits"
    assert not found
    free.set()
    slow.join()
    assert found[0].choices and len(set(began)) == 1 and len(began) == 2, "read anew where nobody waits for it"
    assert running.is_idle()


def test_reading_ends_when_its_client_leaves(running, monkeypatch):
    begun, ended = threading.Event(), threading.Event()

    def load(dataset, record, *given):
        begun.set()
        while not dataset.is_over():
            time.sleep(0.01)
        ended.set()
        raise MediaTimeout(record.videos[0], "not decoded")

    monkeypatch.setattr(DatasetInTime, "load", load)
    body = ask([video("one.mp4")])
    with connected(running) as client:
        client.sendall(head(len(body)) + body)
        assert begun.wait(60)
    assert ended.wait(60) and running.is_idle()


def test_slow_readings_give_up_their_places(running, monkeypatch):
    """Else as many of them as there are places would keep everybody out."""
    monkeypatch.setattr("qwenvl.use.in_time.LONG_READING_SECONDS", 0.0)
    monkeypatch.setattr("qwenvl.use.places.LONG_ARRIVAL_SECONDS", 0.0)
    monkeypatch.setattr(running.server.limits, "max_waiting", 1)
    monkeypatch.setattr(running.server.prompts, "_others_wait", lambda: True)
    begun = []
    loaded = DatasetInTime.load

    def load(dataset, record, *given):
        if not record.videos:
            return loaded(dataset, record, *given)
        begun.append(record.id)
        while not dataset.is_over():
            time.sleep(0.01)
        raise MediaTimeout(record.videos[0], "not decoded")

    monkeypatch.setattr(DatasetInTime, "load", load)
    body = ask([video("one.mp4")])
    with connected(running) as client:
        client.sendall(head(len(body)) + body)
        while len(begun) < 2:
            time.sleep(0.01)
        assert running.ask("Hi", max_tokens=2).choices
        assert status_of(client) == 429
    assert running.is_idle()


def test_all_media_of_a_request_together_have_a_time_limit(running, monkeypatch):
    clock = SimpleNamespace(now=time.monotonic())
    monkeypatch.setattr("qwenvl.use.in_time.monotonic", lambda: clock.now)
    timeout = running.server.prompts._dataset.options.decode_timeout

    def slowly(*given):
        clock.now += 2 * timeout
        return 100

    monkeypatch.setattr(running.server.prompts._pictures, "rewrite", slowly)
    monkeypatch.setattr(running.server.limits, "max_seconds", 9e9)
    status, answer = raw(running, "POST", CHAT, ask([image("part.png"), image("part.png")]))
    assert status == 400 and f"{2 * timeout:g} s" in answer["error"]["message"], answer


def test_a_rewritten_image_has_the_same_pixels(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    noise = np.random.default_rng(0).integers(0, 256, (30, 41, 4), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png", exif=exif)
    Image.fromarray(noise[..., 0].astype(np.uint16) * 257).save(tmp_path / "b.png")
    Image.fromarray(noise[..., :3]).save(tmp_path / "c.jpg")
    reader = PictureReader(memory_gb=1.0)
    for name in ("a.png", "b.png", "c.jpg"):
        assert reader.rewrite(str(tmp_path / name), str(tmp_path / "out.bmp"), 10**6, 60) == 30 * 41
        assert load_image(str(tmp_path / "out.bmp")).equal(load_image(str(tmp_path / name)))
    (tmp_path / "d.png").write_bytes(b"none")
    for path, most in (("d.png", 10**6), ("a.png", 100), ("none.png", 10**6)):
        with pytest.raises(BadMediaError, match=path):
            reader.rewrite(str(tmp_path / path), str(tmp_path / "out.bmp"), most, 60)
    reader.close()


# ---- other machines, and files below the root


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *(("8.8.8.8", True), ("2001:4860:4860::8888", True), ("127.0.0.1", False), ("0.0.0.0", False)),
        *(("10.0.0.1", False), ("172.16.0.1", False), ("192.168.1.1", False), ("169.254.169.254", False)),
        *(("100.64.0.1", False), ("224.0.0.1", False), ("255.255.255.255", False), ("::1", False), ("::", False)),
        *(("fe80::1%eth0", False), ("fc00::1", False), ("::ffff:10.0.0.1", False), ("2002:7f00:1::", False)),
        *(("64:ff9b::7f00:1", False), ("64:ff9b::808:808", True), ("64:ff9b:1::808:808", False)),
        *(("192.0.0.192", False), ("3fff::1", False), ("5f00::1", False)),
        *(("fec0::1", False), ("::127.0.0.1", False), ("::ffff:0:127.0.0.1", False)),
    ],
)
def test_only_addresses_of_the_internet_are_public(address, public):
    assert is_public(address) is public


def test_private_addresses_are_fetched_only_where_that_is_allowed(running, monkeypatch):
    monkeypatch.setattr(running.server.limits, "allow_http", True)
    with Dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde", 0.0) as server:
        port = server.address.rpartition(":")[2]
        for host in ("127.0.0.1", "localhost", "0.0.0.0", "2130706433", "[::ffff:127.0.0.1]", "127.1"):
            status, answer = raw(running, "POST", CHAT, ask([video(f"http://{host}:{port}/x.mp4")]))
            assert status == 400 and "--allow_private_http" in answer["error"]["message"], (host, answer)
        assert not server.asked
    with pytest.raises(ValueError, match="allow_private_http"):
        options_of("--allow_private_http")


def test_the_address_that_was_checked_is_the_one_that_is_asked(monkeypatch):
    with Dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 0.0) as server:
        port = int(server.address.rpartition(":")[2])
        answers = iter([[(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]])
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: next(answers))  # asked for once
        found = fetch(f"http://rebound.example:{port}/", most_bytes=9, seconds=9, allow_private=True)
        assert found == b"hi" and server.asked == 1


def test_a_name_that_resolves_slowly_keeps_no_thread_beyond_its_request(monkeypatch):
    """The system's resolver can't be interrupted."""
    free = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: free.wait(120) and [])
    monkeypatch.setattr("qwenvl.use.fetch._lookups", Lookups(most=3, most_of_a_client=2))
    given = {"most_bytes": 9, "allow_private": True}
    try:
        with pytest.raises(ValueError, match="took too long"):
            fetch("http://slow.example/", seconds=0.05, **given)
        # Also where its client leaves.
        with pytest.raises(ValueError, match="its name was not found in time"):
            fetch("http://slow.example/", seconds=60, at_end=lambda call: call(), **given)
        # These two still wait, and there is a bound on how many of a client do.
        with pytest.raises(BusyError, match="too many names are being looked up"):
            fetch("http://slow.example/", seconds=60, **given)
        with pytest.raises(ValueError, match="took too long"):
            fetch("http://slow.example/", seconds=0.05, client="another", **given)
        with pytest.raises(BusyError, match="too many names are being looked up"):
            fetch("http://slow.example/", seconds=60, client="a third", **given)
    finally:
        free.set()
        for thread in threading.enumerate():
            if thread.name == "resolve":
                thread.join(60)
    with pytest.raises(ValueError, match="the connection ended"):
        fetch("http://found.example/", seconds=60, **given)


def test_too_many_names_are_no_mistake_of_a_request(fetching, monkeypatch):
    monkeypatch.setattr("qwenvl.use.fetch._lookups", Lookups(most=0, most_of_a_client=0))
    status, found = raw(fetching, "POST", CHAT, ask([video("http://busy.example/x.mp4")]))
    assert status == 429 and "too many names are being looked up; try again" in found["error"]["message"], found
    with Dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 0.0) as server:
        # A number is looked up nowhere.
        assert fetch(server.address, most_bytes=9, seconds=60, allow_private=True) == b"hi"


@contextmanager
def unanswered() -> Iterator[tuple[str, int]]:
    """An address that answers no attempt to connect: its listener accepts nobody, and its queue is full."""
    with ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            client = open_sockets.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()


def test_a_connection_that_nobody_waits_for_is_given_up_with_all_its_addresses(monkeypatch):
    with unanswered() as address:
        several = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)] * 6
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: several)
        ends: list[Any] = []  # what is called where the request ends
        with ThreadPoolExecutor(1) as threads:
            given = {"most_bytes": 9, "seconds": 60, "allow_private": True, "at_end": ends.append}
            running = threads.submit(fetch, "http://dead.example/", **given)
            time.sleep(0.5)  # it waits for the first address
            assert not running.done()
            began = time.monotonic()
            for call in ends:
                call()
            with pytest.raises(ValueError, match="cannot be fetched"):
                running.result(60)
        # Each address would take ten seconds.
        assert time.monotonic() - began < 10


def test_an_address_that_does_not_answer_is_followed_by_the_next(monkeypatch):
    monkeypatch.setattr("qwenvl.use.fetch.CONNECT_SECONDS", 0.3)
    with unanswered() as dead, Dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 0.0) as server:
        port = int(server.address.rpartition(":")[2])
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in (dead, ("127.0.0.1", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert fetch("http://two.example/", most_bytes=9, seconds=60, allow_private=True) == b"hi"
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[:1])
        with pytest.raises(ValueError, match="Connection timed out"):
            fetch("http://two.example/", most_bytes=9, seconds=60, allow_private=True)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (b"HTTP/1.1 302 S3CRET\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n", "not http or https"),
        (b"HTTP/1.1 302 S3CRET\r\nLocation: ftp://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", "not http or https"),
        (b"HTTP/1.1 302 S3CRET\r\nLocation: //[S3CRET\r\nContent-Length: 0\r\n\r\n", "an address that is none"),
        (b"HTTP/1.1 302 S3CRET\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "redirected more than 5 times"),
        (b"HTTP/1.1 500 S3CRET\r\nContent-Length: 6\r\n\r\nS3CRET", "status 500"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nS3CRET", "medium 0: not a video"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\nS3CRET", "the connection ended"),
        (b"SSH-2.0-S3CRET\r\n", "does not answer as HTTP"),
    ],
)
def test_answers_of_other_machines_are_not_quoted(fetching, answer, shown):
    with Dripping(answer, 0.0) as server:
        status, found = raw(fetching, "POST", CHAT, ask([video(f"{server.address}/x")]))
    assert status == 400 and shown in found["error"]["message"] and "S3CRET" not in str(found), found


def test_what_is_fetched_counts_as_the_bodies_of_requests_do(fetching, monkeypatch):
    """Else a few bytes of a client would take 64 MB of memory."""
    monkeypatch.setattr("qwenvl.use.places.MOST_BODIES", 5000)
    with Dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n" + b"x" * 9000, 0.0) as server:
        status, found = raw(fetching, "POST", CHAT, ask([video(f"{server.address}/x")]))
    assert status == 429 and "other requests take the memory of this one" in found["error"]["message"], found


def test_refusals_reveal_neither_the_root_nor_the_contents_of_files(running, made_media):
    root = made_media / "media"
    (root / "words.mp4").write_text("S3CRET words")
    (root / "words.png").write_text("S3CRET words")
    (root / "broken.png").write_bytes((root / "part.png").read_bytes()[:60])
    (root / "frames").mkdir(exist_ok=True)
    Image.new("RGB", (90, 60)).save(made_media / "outside.png")
    link = root / "frames" / "1.png"
    link.unlink(missing_ok=True)
    link.symlink_to(made_media / "outside.png")
    (root / "empty").mkdir(exist_ok=True)
    (root / "torn").mkdir()
    (root / "torn" / "0.png").write_bytes(b"S3CRET")
    names = ("words.mp4", "words.png", "none.mp4", "../secret.txt", "link.mp4", "frames", "empty", ".", "/etc/passwd")
    names += ("torn",)
    for url in names:
        for part in (video(url), image(url), video(f"file://{root}/{url}")):
            status, answer = raw(running, "POST", CHAT, ask([part]))
            message = answer["error"]["message"].replace(part[part["type"]]["url"], "")
            assert status == 400 and str(made_media) not in message and "S3CRET" not in message, (url, message)
    status, answer = raw(running, "POST", CHAT, ask([image("broken.png")]))
    assert answer["error"]["message"].startswith("broken.png: damaged image")
    for url in ("", ".", "frames/.."):
        status, answer = raw(running, "POST", CHAT, ask([video(url)]))
        assert status == 400 and "names the media root" in answer["error"]["message"], answer


# ---- what reading takes


def test_a_clip_is_decoded_within_the_time_that_is_left(running, monkeypatch):
    seen = []
    opened = running.server.prompts._dataset.__class__.__mro__[1].open

    def noted(dataset, record, number):
        seen.append(dataset.options.decode_timeout)
        return opened(dataset, record, number)

    monkeypatch.setattr("qwenvl.data.dataset.GRPODataset.open", noted)
    monkeypatch.setattr(running.server.limits, "max_seconds", 20.0)
    assert running.ask(video("one.mp4"), QUESTION, max_tokens=1).choices
    assert seen and all(0 < each <= 20 for each in seen)


def test_memory_that_prompts_wait_in_has_a_bound(running, monkeypatch):
    monkeypatch.setattr("qwenvl.use.prompts.MOST_PROMPT_BYTES", 0)
    begun, free = threading.Event(), threading.Event()
    sampling = running.server.sampling
    sampled = sampling._sample
    monkeypatch.setattr(sampling, "_sample", lambda *given: (begun.set(), free.wait(60), sampled(*given))[2])
    loaded = []
    monkeypatch.setattr(DatasetInTime, "load", noting(loaded, DatasetInTime.load))
    asked = [threading.Thread(target=running.ask, args=[video("one.mp4"), QUESTION]) for _ in range(3)]
    asked[0].start()
    assert begun.wait(60)
    asked[1].start()
    while len(running.server.sampling._waiting) < 1:
        time.sleep(0.01)
    asked[2].start()
    while running.server.active < 3:
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(loaded) == 2  # the third waits for the second to be sampled
    free.set()
    for each in asked:
        each.join()
    assert len(loaded) == 3


def noting(calls, method):
    def noted(*given, **named):
        calls.append(given)
        return method(*given, **named)

    return noted
