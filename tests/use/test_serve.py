"""``qwenvl serve`` with the official client: answers of ``qwenvl try``, streams, limits, broken requests."""

import asyncio
import base64
import http.client
import http.server
import io
import json
import re
import shutil
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import openai
import pytest

from qwenvl.cli import main as qwenvl
from qwenvl.commands.serve import serve_request
from qwenvl.data.prompt_settings import PromptSettings
from qwenvl.data.records.framing import Framing
from qwenvl.data.records.parse import ReadOptions, Row, read_row
from qwenvl.demo.clips import encode
from qwenvl.evaluate.requests import try_request
from qwenvl.rewards.kinds import CHOICE, WORDS
from qwenvl.rollout.servers import ServerRefusedError
from qwenvl.use.answers import MOST_UNSENT, _Choice
from qwenvl.use.awaiting import patiently
from qwenvl.use.chat_request import ApiError, Patience, parse_body
from qwenvl.use.check_server import messages_of
from qwenvl.use.request_folder import RequestFolder
from qwenvl.use.serve import ChatServer
from tests.use.running import FLAGS, QUESTION, data_url, image, raw, video

MANY = 200


def tried(made_media, *words: str, capsys) -> dict:
    capsys.readouterr()
    media = [str(made_media / "media" / word) if "." in word else word for word in words]
    assert qwenvl(["try", str(made_media / "model"), *media, "--json", *FLAGS]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    [("one.mp4", "Which?"), ("part.png", "one.mp4", QUESTION), ("1 + 1 =",)],
    ids=["a clip", "a picture and a clip", "text"],
)
def test_the_server_answers_as_try_does(running, made_media, capsys, words):
    expected = tried(made_media, *words, capsys=capsys)
    parts = [video(word) if "mp4" in word else image(word) if "png" in word else word for word in words]
    answer = running.ask(*parts)
    [wanted], [choice] = expected["answers"], answer.choices
    assert choice.message.content == wanted["text"] and choice.finish_reason == wanted["finish_reason"]
    assert answer.usage.prompt_tokens == expected["prompt_tokens"][0]
    assert answer.usage.completion_tokens == wanted["tokens"]


def test_all_ways_to_name_a_clip_show_the_same(running, made_media):
    path = made_media / "media/one.mp4"
    answers = [running.ask(video(url), QUESTION) for url in ("one.mp4", path.as_uri(), str(path), data_url(path))]
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    assert len({answer.usage.prompt_tokens for answer in answers}) == 1


def test_a_system_turn_of_the_request_replaces_that_of_training(running):
    create = running.client.chat.completions.create
    turns = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Yes?"}]
    one, other = (
        create(model="model", messages=[*system, *turns, {"role": "user", "content": "Go."}]).usage.prompt_tokens
        for system in ([], [{"role": "system", "content": "Be very very brief and polite."}])
    )
    assert one < other  # a system turn of the request replaces that of training


def test_a_stream_is_the_answer_in_pieces(running):
    whole = running.ask(video("one.mp4"), QUESTION)
    pieces = [*running.ask(video("one.mp4"), QUESTION, stream=True, stream_options={"include_usage": True})]
    texts = [piece.choices[0].delta.content for piece in pieces]
    assert "".join(texts) == whole.choices[0].message.content and sum(map(bool, texts)) > 3
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert pieces[-1].usage == whole.usage
    several = [*running.ask(QUESTION, stream=True, n=2, temperature=1.5)]
    assert {piece.choices[0].index for piece in several} == {0, 1}


@pytest.mark.parametrize("written", ["\ufffd" * 100, "a\ufffdb" * 40, "\U0001f600" * 30, "x€" * 40])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_what_decodes_to_half_characters_is_sent_as_it_comes(written, size):
    """Kept back until the end, each token would be decoded again with all before it."""
    data = written.encode()
    tokens = [data[start : start + size] for start in range(0, len(data), size)]
    decoded = []

    def decode(ids):
        decoded.append(len(ids))
        return b"".join(tokens[each] for each in ids).decode(errors="replace")

    choice = _Choice(decode)
    pieces = [choice.piece(number) for number in range(len(tokens))]
    assert written.startswith("".join(pieces)) and choice.sent == "".join(pieces)
    assert len(choice.sent) > len(written) - 4 * MOST_UNSENT and max(decoded) <= 4 * MOST_UNSENT


def test_a_request_sets_length_stops_samples_temperature_and_seed(running):
    whole = running.ask(QUESTION).choices[0].message.content
    short = running.ask(QUESTION, max_tokens=3)
    assert short.usage.completion_tokens == 3 and short.choices[0].finish_reason == "length"
    assert whole.startswith(short.choices[0].message.content.rstrip("\ufffd"))
    stop = next(each for each in whole if each.isascii() and each.isprintable())
    ended = running.ask(QUESTION, stop=[stop])
    assert ended.choices[0].message.content == whole[: whole.index(stop)] and ended.choices[0].finish_reason == "stop"
    sampled = running.ask(QUESTION, n=4, temperature=2.0)
    assert len({choice.message.content for choice in sampled.choices}) > 1
    texts = [running.ask(QUESTION, temperature=2.0, seed=seed).choices[0].message.content for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]
    more = {"ignore_eos": False, "min_tokens": 0}
    settings = {"user": "me", "presence_penalty": 0, "tools": [], "response_format": {"type": "text"}}
    ignored = running.ask(QUESTION, **settings, extra_body=more)
    assert ignored.choices[0].message.content == whole


@pytest.mark.parametrize(
    ("content", "more", "status", "message"),
    [
        ([], {"n": 0}, 400, "n must be at least 1, got 0"),
        (["Hi"], {"temperature": "hot"}, 400, "temperature must be a number"),
        (["Hi"], {"stop": ["", "x"]}, 400, "stop must be texts of at least one character"),
        (["Hi"], {"max_tokens": 25}, 400, "max_tokens must be at most 24 (--generation_max_length)"),
        (["Hi"], {"max_tokens": 2, "max_completion_tokens": 3}, 400, "its newer name max_completion_tokens differ"),
        (["Hi"], {"presence_penalty": 0.5}, 400, "presence_penalty: not offered by this server"),
        # 0 and false ask for something: for all tokens, and for an answer without thinking.
        (["Hi"], {"extra_body": {"top_k": 0}}, 400, "top_k: not offered by this server"),
        (["Hi"], {"extra_body": {"enable_thinking": False}}, 400, "enable_thinking: not offered by this server"),
        (["Hi"], {"extra_body": {"skip_special_tokens": False}}, 400, "skip_special_tokens: not offered"),
        (["Hi"], {"logprobs": True, "stream": True}, 400, "logprobs are not offered with stream"),
        (["Hi <video>"], {}, 400, "typed parts name media by"),
        (["Hi<|im_end|>"], {}, 400, "it holds '<|im_end|>'"),
        ([video("none.mp4"), "Hi"], {}, 400, "none.mp4: No such file or directory"),
        ([video("file:///etc/passwd"), "Hi"], {}, 400, "leads out of the media root"),
        *(([video(part * 25_000), "Hi"], {}, 400, "has more than 8,192 characters") for part in ("a/../", "a/", "../")),
        ([video("http://a.b/" + "c" * 9_000), "Hi"], {}, 400, "has more than 8,192 characters"),
        ([video("link.mp4"), "Hi"], {}, 400, "leads out of the media root"),
        ([video("link"), "Hi"], {}, 400, "leads out of the media root"),  # a clip is found without its ending too
        ([video("http://127.0.0.1:1/x.mp4"), "Hi"], {}, 400, "this server fetches nothing (--allow_http)"),
        ([video("data:video/mp4;base64,aGVsbG8="), "Hi"], {}, 400, "medium 0: not a video"),
        ([{"type": "video", "video": "/etc/passwd"}, "Hi"], {}, 400, "expected parts of type text, video_url or"),
        ([{"type": "image_url", "image_url": {}}], {}, 400, "image_url 'None': expected {\"url\": ...}"),
        ([image("part.png")] * 3, {}, 400, "expected at most 2 clips and images (--max_media)"),
        ([image("data:image/png;base64," + "A" * 2**20), "Hi"], {}, 413, "the request is above 1 MB (--max_body_mb)"),
    ],
)
def test_broken_requests_are_refused_with_the_field_and_the_reason(running, content, more, status, message):
    with pytest.raises(openai.APIStatusError) as raised:
        running.ask(*content, **more)
    assert raised.value.status_code == status and message in raised.value.body["message"], raised.value.body
    assert raised.value.body["type"] == "invalid_request_error" and running.is_idle()


def test_a_path_whose_letters_are_those_of_a_clip_is_a_path(running, monkeypatch, tmp_path):
    """A root of four letters makes a path of base64 that begins as a clip. It would be stored, for good."""
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path))
    monkeypatch.setattr(running.server.prompts.reader, "_root", "/srv")
    name = "GZ0eXAA".ljust(195, "A")
    assert base64.b64decode(f"/srv/{name}")[4:8] == b"ftyp"
    with pytest.raises(openai.BadRequestError, match="No such file"):
        running.ask(video(name), "Hi")
    assert not list(tmp_path.rglob("*"))


def test_what_was_made_for_a_request_that_has_ended_is_no_answer():
    async def made():
        return "an answer without its look"

    async def is_gone():
        return False

    patience = Patience(60.0)
    patience.end(ApiError(503, "the looks of this request take long"))
    with pytest.raises(ApiError, match="take long"):
        asyncio.run(patiently(made(), patience, is_gone))


def test_a_request_that_a_sampling_server_refuses_fails_alone(running, monkeypatch):
    """Servers of vLLM take shorter prompts than the model, and refuse all that are sent together."""
    server, sampled = running.server, running.server.sampling._sample
    rounds, begun, free, refused, answers = [], threading.Event(), threading.Event(), [], []

    def refusing(together, loop):
        begun.set()
        assert free.wait(60)
        lengths = [each.batch.input_ids.shape[1] for each in together]
        rounds.append(len(lengths))
        if max(lengths) > 200:
            raise ServerRefusedError("10.0.0.1:8202: /sample: HTTP 400: prompts[0]: too many tokens")
        return sampled(together, loop)

    def ask_long():
        try:
            running.ask("Which? " * 100, max_tokens=2)
        except openai.BadRequestError as error:
            refused.append(error.body["message"])

    monkeypatch.setattr(server.sampling, "_sample", refusing)
    asking = [lambda: running.ask("Hi", seed=1, max_tokens=1), ask_long]
    asking += [lambda: answers.append(running.ask("Hi", max_tokens=2))] * 2
    threads = [threading.Thread(target=each) for each in asking]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    until = time.monotonic() + 60
    while len(server.sampling._waiting) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    free.set()
    for thread in threads:
        thread.join(60)
    assert refused == ["the sampling server refuses: prompts[0]: too many tokens"]
    assert len(answers) == 2 and rounds == [1, 3, 1, 1, 1] and running.is_idle()


def test_a_body_that_is_no_request_is_refused(running):
    bodies = [b"", b"{", b"7", b"\xff", b"[" * 10**5]
    for messages in ([], "x", [7], [{"role": "user"}], [{"role": "bot", "content": "x"}], [{"content": [None]}]):
        bodies.append(json.dumps({"messages": messages}).encode())
    for body in bodies:
        status, answer = raw(running, "POST", "/v1/chat/completions", body)
        assert status == 400 and answer["error"]["message"], body[:40]
        assert answer["error"]["type"] == "invalid_request_error"


def test_models_and_health_are_served_and_other_addresses_are_not_found(running):
    assert [model.id for model in running.client.models.list()] == ["model"]
    assert raw(running, "GET", "/health") == (200, {"status": "ok", "requests": 0})
    assert raw(running, "GET", "/v1/nothing")[0] == 404 and raw(running, "GET", "/v1/chat/completions")[0] == 405
    assert raw(running, "GET", "/v1/nothing")[1]["error"]["message"] == "Not Found"
    with pytest.raises(openai.NotFoundError, match="'gpt' is not served; there is 'model'"):
        running.client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "Hi"}])


def test_many_requests_at_once_have_the_answers_of_single_ones(running):
    text = {"type": "text", "text": QUESTION}
    contents = [[video("one.mp4"), text], [image("part.png"), text], "Hello.", [video("two.mp4"), text]]
    create = running.client.chat.completions.create
    turns = [[{"role": "user", "content": content}] for content in contents]
    alone = [create(model="model", messages=each, max_tokens=8).choices[0].message.content for each in turns]

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=running.url, api_key="none", max_retries=0, timeout=300) as client:
            answers = [
                client.chat.completions.create(model="model", messages=turns[n % 4], max_tokens=8) for n in range(MANY)
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*answers)]

    assert asyncio.run(together()) == [alone[n % 4] for n in range(MANY)]
    assert running.is_idle()


def test_places_are_limited_and_a_client_that_stops_frees_its_own(running, monkeypatch):
    monkeypatch.setattr(running.server.limits, "max_waiting", 1)
    begun, free = threading.Event(), threading.Event()
    sampled = running.server.sampling._sample

    def slowly(*arguments):
        begun.set()
        assert free.wait(60)
        return sampled(*arguments)

    monkeypatch.setattr(running.server.sampling, "_sample", slowly)
    stopped = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    body = {"messages": [{"role": "user", "content": QUESTION}]}
    stopped.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert begun.wait(60)
    with pytest.raises(openai.RateLimitError, match="1 requests wait already"):
        running.ask(QUESTION)
    stopped.close()
    assert running.is_idle()  # though its batch is still being sampled
    free.set()
    monkeypatch.setattr(running.server.sampling, "_sample", sampled)
    assert running.ask(QUESTION).choices[0].message.content


class Closed(io.TextIOBase):
    """A stderr whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_request_ends_at_its_time_limit_or_with_the_error_of_sampling(running, monkeypatch):
    free = threading.Event()
    monkeypatch.setattr(running.server.limits, "max_seconds", 0.2)
    sampling = running.server.sampling
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "_sample", lambda together, loop: [free.wait(60) and None for _ in together])
        with pytest.raises(openai.APIStatusError) as raised:
            running.ask(QUESTION)
        assert raised.value.status_code == 504 and "no answer within 0.2 s" in raised.value.body["message"]
        free.set()
    monkeypatch.setattr(running.server.limits, "max_seconds", 60.0)
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "_sample", lambda together, loop: [1 / 0])
        patch.setattr(sys, "stderr", Closed())  # whose terminal was closed: the next request is answered still
        with pytest.raises(openai.InternalServerError, match="sampling failed: ZeroDivisionError; the server's log"):
            running.ask(QUESTION)
    assert running.ask(QUESTION).choices[0].message.content and running.is_idle()


def test_media_are_fetched_where_that_is_allowed(running, made_media, monkeypatch):
    class Files(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(made_media / "media"))

        def log_message(self, *_):
            pass

    monkeypatch.setattr(running.server.limits, "allow_http", True)
    monkeypatch.setattr(running.server.limits, "allow_private_http", True)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{files.server_port}"
        answer = running.ask(video(f"{address}/one.mp4"), QUESTION)
        assert answer.choices[0].message.content == running.ask(video("one.mp4"), QUESTION).choices[0].message.content
        with pytest.raises(openai.BadRequestError, match="404"):
            running.ask(video(f"{address}/none.mp4"), QUESTION)
        monkeypatch.setattr(running.server.limits, "max_body_mb", 0.001)
        with pytest.raises(openai.BadRequestError, match=r"above 0\.001 MB"):
            running.ask(video(f"{address}/one.mp4"), QUESTION)
        files.shutdown()


def test_an_answer_has_the_log_probs_of_its_tokens(running):
    answer = running.ask(video("one.mp4"), QUESTION, logprobs=True, n=2, temperature=1.0)
    again = running.ask(video("one.mp4"), QUESTION, logprobs=True)
    assert again.usage.completion_tokens == len(again.choices[0].token_ids)
    decode = running.server.collator.processor.tokenizer.decode
    for choice in (*answer.choices, *again.choices):
        content = choice.logprobs.content
        assert [each.token for each in content] == [decode([n]) for n in choice.token_ids]
        assert decode(choice.token_ids, skip_special_tokens=True) == choice.message.content
        assert all(each.logprob <= 0 for each in content)
    assert running.ask(QUESTION).choices[0].logprobs is None


@pytest.fixture(scope="module")
def records(made_media):
    """Six records, one of them with `meta`, which no request can have."""
    turns = lambda prompt: [{"from": "human", "value": prompt}, {"from": "gpt", "value": "<answer>(1)</answer>"}]
    rows = [
        {"id": "part", "video": "media/one.mp4", "meta": {"video_start": 1}, "conversations": turns("<video>\nWhich?")},
        {"id": "video", "video": "media/one.mp4", "conversations": turns(f"<video>\n{QUESTION}")},
        {"id": "without a new line", "video": "media/two.mp4", "conversations": turns("<video>Which?")},
        {"id": "text", "conversations": turns("1 + 1 =")},
        {"id": "behind", "image": "media/part.png", "conversations": turns("What is <image>")},
        {
            "id": "both",
            "video": "media/one.mp4",
            "image": "media/part.png",
            "conversations": turns("<image>\n<video>\nWhich?"),
        },
    ]
    (made_media / "records.json").write_text(json.dumps(rows))
    return made_media / "records.json"


def test_media_that_were_bytes_in_a_row_have_the_usual_type_of_their_kind(made_media):
    image = (made_media / "media/part.png").read_bytes()
    row = {"prompt": "<image>\n<video>\nWhich?", "image": {"bytes": image}, "video": "media/one.mp4", "solution": "x"}
    record = read_row(Row("rows[0]", "0", row), made_media, ReadOptions())
    parts = messages_of(record)[0]["content"]
    urls = [part[part["type"]]["url"] for part in parts if part["type"] != "text"]
    assert [url.partition(",")[0] for url in urls] == ["data:image/png;base64", "data:video/mp4;base64"]


def checked(made_media, records, url, capsys) -> list[str]:
    capsys.readouterr()
    assert qwenvl(["serve", str(made_media / "model"), str(records), "--check", url, *FLAGS]) == 0
    return capsys.readouterr().out.splitlines()


MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "them"}]}
SAID = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
COUNTS = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
LOGPROB = {"token": "x", "logprob": -1.0, "bytes": None, "top_logprobs": []}


def replied(choice: dict | None = None, usage: dict | None = COUNTS) -> dict:
    choices = [] if choice is None else [choice]
    return {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}


@pytest.mark.parametrize(
    ("models", "reply", "told"),
    [
        ("<html>hi</html>", {}, "expected a list of models at /models"),
        ({"object": "list", "data": []}, {}, "expected a list of models at /models"),
        ({"object": "list", "data": None}, {}, "expected a list of models at /models"),
        (MODELS, "<html>hi</html>", "expected an answer with choices, a message, usage and log-probs"),
        (MODELS, replied(), "expected an answer with choices"),
        (MODELS, replied(SAID, usage=None), "expected an answer with choices"),
        (MODELS, replied({**SAID, "message": None}), "expected an answer with choices"),
        (MODELS, replied({**SAID, "logprobs": {"content": [{**LOGPROB, "logprob": None}]}}), "expected an answer with"),
        (MODELS, replied({**SAID, "token_ids": ["a"]}), "expected an answer with choices"),
        (MODELS, replied({**SAID, "token_ids": [10**9]}), "expected token_ids from 0 to"),
    ],
)
def test_check_names_what_a_server_answers_otherwise(made_media, records, capsys, models, reply, told):
    class Odd(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_) -> None:
            pass

        def answer(self, found) -> None:
            is_text = isinstance(found, str)
            data = (found if is_text else json.dumps(found)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if is_text else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self.answer(models)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(reply)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            with pytest.raises(SystemExit) as ended:
                qwenvl(["serve", str(made_media / "model"), str(records), "--check", url, *FLAGS])
        finally:
            server.shutdown()
    assert ended.value.code == 2 and f"--check {url}: {told}" in capsys.readouterr().err


def test_check_tells_whether_a_server_sees_prompts_and_frames_as_trained(
    running, made_media, records, capsys, monkeypatch
):
    lines = checked(made_media, records, running.url, capsys)
    names = ["video", "without a new line", "text", "behind", "both"]
    assert [line.partition(":")[0] for line in lines[:5]] == names
    lengths = [re.search(r"([\d,]+) tokens of the prompt, ([\d,]+) here", line).groups() for line in lines[:5]]
    # The server puts a new line behind a clip, as the settings of the model say.
    assert [int(there) - int(here) for there, here in lengths] == [0, 1, 0, 0, 0]
    assert lines[6].startswith("NOT as trained: look at the number of frames")
    good = json.loads(records.read_text())
    del good[2]
    (made_media / "good.json").write_text(json.dumps(good))
    (made_media / "video.json").write_text(json.dumps(good[:2]))
    lines = checked(made_media, made_media / "good.json", running.url, capsys)
    assert all(": the same answer; " in line for line in lines[:4]) and lines[5:] == ["as trained, but for rounding"]
    largest = float(re.fullmatch(r"log-probs of \d+ tokens differ by (\S+) at most and by \S+ on average", lines[4])[1])
    assert largest < 1e-4
    with monkeypatch.context() as patch:
        patch.setattr("qwenvl.use.web.logprobs_of", lambda *_: {})
        lines = checked(made_media, made_media / "good.json", running.url, capsys)
        assert lines[4].startswith("no log-probs are compared") and lines[5] == "as trained, but for rounding"
    # Other frames of the same size and number: all of them are white noise.
    noise = np.random.default_rng(0).integers(0, 2, (40, 120, 160, 1)).repeat(3, -1) * 255
    other = made_media / "media" / "other.mp4"
    encode(other, noise.astype(np.uint8), 10, options={})
    path = running.server.prompts.reader.path_of
    with monkeypatch.context() as patch:
        patch.setattr(running.server.prompts.reader, "path_of", lambda *each: path(*each) and str(other))
        lines = checked(made_media, made_media / "video.json", running.url, capsys)
    assert lines[-1].startswith("NOT as trained: look at which frames are taken")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "expected one MODEL, or MODEL DATA with --check, before the flags, got nothing"),
        (["model", "--check", "http://127.0.0.1:1/v1"], "MODEL DATA with --check, before the flags, got model"),
        (["model", "x.json", "--check", "http://x/v1", "--port", "1"], "--port has no effect with --check"),
        (["./none"], "./none: no such folder"),
        (["model", "--decode_timeout", "0"], "--decode_timeout 0 lets the clip of one request stop the server"),
        (["model", "--port", "0"], "--port must be at least 1, got 0"),
        (["model", "--media_root", "none"], "--media_root none: no such folder"),
        (["model", "--reward_funcs", "format"], "--reward_funcs has no effect: only training reads it"),
    ],
)
def test_wrong_arguments_of_serve_end_with_one_line(made_media, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(made_media)
    try:
        found = qwenvl(["serve", *argv])
    except SystemExit as ended:
        found = ended.code
    error = capsys.readouterr().err
    assert found == 2 and "Traceback" not in error and message in error.strip().splitlines()[-1], error


def test_a_question_is_framed_as_the_questions_of_training(made_media, tmp_path, capsys):
    shutil.copytree(made_media / "model", tmp_path / "model")
    settings = PromptSettings.load(made_media / "model")
    framing = Framing(kinds=(WORDS, CHOICE), system="Look at the hands.")
    replace(settings, system=None, framing=framing).save(tmp_path / "model")
    server = ChatServer(serve_request([str(tmp_path / "model"), "--media_root", str(made_media / "media"), *FLAGS]))
    for question in ("Which?", "Which?\nA. pick\nB. insert", "Which? Write it in <answer></answer>."):
        content = [video("one.mp4"), {"type": "text", "text": question}]
        body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
        parsed = parse_body(body, server.name, server.sampling.respondent.sample.params)
        patience = Patience(60.0)
        folder = RequestFolder(tmp_path)
        record = server.prompts._record(parsed, folder, patience)
        sent = server.prompts._made(record, parsed, folder, patience).batch.input_ids.tolist()
        asked = try_request([str(tmp_path / "model"), str(made_media / "media/one.mp4"), question, *FLAGS]).record
        shown = server.collator([server.prompts._dataset.within(lambda _: 60.0, lambda: False).load(asked)])["prompts"]
        assert sent == shown.input_ids.tolist()
        assert ("First think" in asked.messages[-1].text) == ("<answer>" not in question)
        assert asked.messages[0].text == "Look at the hands."
