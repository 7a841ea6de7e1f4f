"""``qwenvl serve`` of a model with tools: its policy is made to call them."""

import asyncio
import json
import re
import shutil
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import openai
import pytest
import torch

from qwenvl.cli import main as qwenvl
from qwenvl.data.errors import BadMediaError, MediaTimeout
from qwenvl.rollout import next_token
from qwenvl.use.in_time import LookTimes
from tests.use.running import QUESTION, Running, data_url, video

CALL = '<tool_call>{"name": "look", "arguments": {"start": 0.5, "end": 1.5}}</tool_call><|im_end|>'
SEVERAL = "".join(CALL.replace("0.5", f"0.{n}").removesuffix("<|im_end|>") for n in range(1, 9)) + "<|im_end|>"


LOOKS = ("--tools", "look", "--max_turns", "2")


@pytest.fixture(scope="module")
def looking(made_media):
    """A running server whose policy may look."""
    server = Running(made_media, *LOOKS, "--generation_max_length", "900")
    yield server
    server.end()


@pytest.fixture
def calling(looking, monkeypatch):
    """Where its ``text`` is set, completions begin with it."""
    forced = SimpleNamespace(text="")
    made = next_token.logits_processors

    def processors(*given):
        chosen, starts = made(*given), []
        tokens = looking.server.collator.processor.tokenizer(forced.text)["input_ids"] if forced.text else []

        def force(ids, scores):
            starts.append(ids.shape[1])
            place = ids.shape[1] - starts[0]
            if place >= len(tokens):
                return scores
            return torch.full_like(scores, -9e9).index_fill(1, torch.tensor(tokens[place]), 0.0)

        chosen.insert(0, force)
        return chosen

    monkeypatch.setattr(next_token, "logits_processors", processors)
    return forced


def test_a_look_sees_the_clip_of_its_request_until_the_request_ends(looking, calling, made_media, monkeypatch):
    """The clip is there until the request ends, and a client that leaves ends its turns."""
    calling.text = CALL
    tokens = looking.server.collator.processor.tokenizer(CALL)["input_ids"]
    sampled, looks = looking.server.sampling._sample, []

    def noted(*given):
        rollouts = sampled(*given)
        looks.extend(call for rollout in rollouts for turns in rollout.turns for turn in turns for call in turn.calls)
        return rollouts

    monkeypatch.setattr(looking.server.sampling, "_sample", noted)
    clip = video(data_url(made_media / "media/one.mp4"))
    answer = looking.ask(clip, QUESTION, logprobs=True, max_tokens=90)
    assert answer.choices[0].message.content.startswith('<tool_call>{"name": "look"') and answer.usage.prompt_tokens
    [look] = looks
    assert look.error is None and all(0.5 <= time <= 1.5 for clip in look.clips for time in clip.times)
    assert answer.usage.completion_tokens == len(answer.choices[0].token_ids) > len(tokens)
    stopped = looking.ask(video("one.mp4"), QUESTION, stop=["</tool_call>"], max_tokens=90)
    assert stopped.choices[0].message.content == CALL.partition("</tool_call>")[0]
    assert stopped.choices[0].finish_reason == "stop" and looking.is_idle()


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, SystemExit, KeyError])
def test_whatever_a_tool_raises_ends_its_own_request_alone(looking, calling, monkeypatch, caplog, error):
    """A cancelled task of a tool would be taken for the cancellation of the one that samples for everybody."""
    calling.text = CALL

    def fails(*given):
        raise error("of a tool")

    monkeypatch.setattr(looking.server.sampling.respondent.sample.toolbox.dataset, "open", fails)
    with pytest.raises(openai.APIStatusError) as raised:
        looking.ask(video("one.mp4"), QUESTION, max_tokens=90)
    assert raised.value.status_code == 500
    monkeypatch.undo()
    assert looking.ask(QUESTION, max_tokens=1).choices and looking.is_idle()
    assert error.__name__ in caplog.text


def test_looks_end_with_the_request_that_makes_them(looking, calling, monkeypatch):
    """A look may take long: those of a request that is over must not keep others waiting."""
    calling.text = SEVERAL
    dataset = looking.server.sampling.respondent.sample.toolbox.dataset
    clock = SimpleNamespace(late=0.0)
    now = lambda: time.monotonic() + clock.late
    monkeypatch.setattr("qwenvl.use.chat_request.time", SimpleNamespace(monotonic=now))
    over, looks = threading.Event(), []

    def hangs(record, number):
        seconds = dataset.seconds_left(record)
        looks.append((dataset.is_over(), seconds))
        clock.late = 1000.0  # the time of the request is up
        looks.append(dataset.is_over())
        assert over.wait(60)
        raise BadMediaError(record.videos[number], "not decoded")

    monkeypatch.setattr(dataset, "open", hangs)
    with pytest.raises(openai.APIStatusError) as raised:
        looking.ask(video("one.mp4"), QUESTION)
    assert raised.value.status_code == 504
    over.set()
    monkeypatch.undo()
    assert looking.ask(QUESTION, max_tokens=1).choices
    assert looks == [(False, 15.0), True], "no other look has begun"


@pytest.mark.parametrize("together", [True, False])
def test_a_request_whose_looks_take_long_ends_where_others_wait(looking, calling, made_media, monkeypatch, together):
    """Looks run one after the other in the thread that samples for everybody. No other request loses its own."""
    calling.text = CALL
    server = looking.server
    clock = SimpleNamespace(late=0.0)
    monkeypatch.setattr("qwenvl.use.in_time.monotonic", lambda: time.monotonic() + clock.late)
    toolbox = server.sampling.respondent.sample.toolbox
    own = toolbox.dataset.open
    slow = str(made_media / "media" / "slow.mp4")
    shutil.copy(made_media / "media" / "one.mp4", slow)
    begun, queued, stopped = threading.Event(), threading.Event(), []

    def opened(record, number):
        if record.videos[number] != slow:
            return own(record, number)
        toolbox.dataset.seconds_left(record)
        begun.set()
        assert queued.wait(60)
        clock.late += 100.0
        stopped.append(toolbox.dataset.is_over())
        raise MediaTimeout(slow, "not decoded")

    monkeypatch.setattr(toolbox.dataset, "open", opened)
    seeds = {} if together else {"seed": 1}
    errors, answers = [], []

    def ask_slow():
        try:
            looking.ask(video("slow.mp4"), QUESTION, **seeds)
        except openai.APIStatusError as error:
            errors.append(error)

    def ask_other():
        answers.append(looking.ask(video("one.mp4"), QUESTION, logprobs=True, **seeds))

    alone = looking.ask(video("one.mp4"), QUESTION, logprobs=True, **seeds)
    asking = [ask_slow, ask_other]
    sampled, free = server.sampling._sample, threading.Event()
    if together:  # both wait while a third one is sampled

        def held(*given):
            begun.set()
            assert free.wait(60)
            return sampled(*given)

        monkeypatch.setattr(server.sampling, "_sample", held)
        asking.insert(0, lambda: looking.ask("Hi", seed=2, max_tokens=1))
    first, *others = [threading.Thread(target=each, daemon=True) for each in asking]
    first.start()
    assert begun.wait(60)
    for thread in others:
        thread.start()
    until = time.monotonic() + 60
    while len(server.sampling._waiting) < len(others) and time.monotonic() < until:
        time.sleep(0.01)
    free.set()
    queued.set()
    for thread in (first, *others):
        thread.join(120)
    assert stopped == [True]
    assert errors[0].status_code == 503 and "the looks of this request take long" in str(errors[0])
    assert answers[0].choices[0].token_ids == alone.choices[0].token_ids


def test_a_look_has_a_quarter_of_the_time_of_a_clip(looking):
    """It keeps all other requests waiting, as reading the clips of a prompt does not."""
    looks = looking.server.sampling.respondent.sample.toolbox.dataset.options
    assert looks.decode_timeout == looking.server.prompts._dataset.options.decode_timeout / 4 == 15.0


@pytest.mark.parametrize("fault", [ZeroDivisionError("division by zero"), MemoryError("no more")])
def test_a_tool_that_fails_ends_its_own_request_alone(looking, calling, monkeypatch, caplog, fault):
    toolbox = looking.server.sampling.respondent.sample.toolbox

    def fails(video, start, end):
        raise fault

    own = replace(toolbox.tools["look"], function=fails)
    monkeypatch.setitem(toolbox.tools, "look", own)
    calling.text = CALL
    with pytest.raises(openai.InternalServerError) as raised:
        looking.ask(video("one.mp4"), QUESTION, max_tokens=90)
    assert raised.value.body["message"] == "a tool of this server failed for this request; its log says how"
    assert f"{type(fault).__name__}: {fault}" in caplog.text
    calling.text = ""
    assert looking.ask(video("one.mp4"), QUESTION, max_tokens=2).choices and looking.is_idle()


def test_a_call_that_opens_its_clip_several_times_has_taken_the_time_of_all(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("qwenvl.use.in_time.monotonic", lambda: clock.now)
    looks = LookTimes(requests=2)
    record = SimpleNamespace(id="loops")
    for _ in range(3):
        looks.begin(record)
        assert not looks.are_long(record)
        clock.now += 4.0
    assert looks.are_long(record)  # 12 s, of which its share is 5
    looks.end()
    looks.begin(SimpleNamespace(id="another"))
    assert not looks.are_long(looks.record)


def record_file(folder, *rows) -> str:
    path = folder / "asked.json"
    answered = {"from": "gpt", "value": "<answer>(1)</answer>"}
    asked = {"from": "human", "value": f"<video>\n{QUESTION}"}
    path.write_text(json.dumps([{"conversations": [asked, answered], **row} for row in rows]))
    return str(path)


def checked(looking, made_media, data: str, *more: str) -> int:
    words = [str(made_media / "model"), data, "--check", looking.url, "--use_cpu", *LOOKS, *more]
    return qwenvl(["serve", *words])


def test_check_compares_log_probs_behind_what_tools_append(looking, calling, made_media, capsys, monkeypatch):
    calling.text = CALL
    data = record_file(made_media, {"id": "look", "video": "media/one.mp4"})
    assert checked(looking, made_media, data, "--generation_max_length", "90") == 0
    line, compared, verdict = capsys.readouterr().out.splitlines()
    assert line.startswith("look: the same answer; ") and verdict == "as trained, but for rounding"
    largest = float(re.search(r"log-probs of \d+ tokens differ by (\S+) at most", compared)[1])
    assert largest < 1e-4


def test_check_compares_no_log_probs_behind_calls_that_tools_here_do_not_answer(
    looking, calling, made_media, capsys, monkeypatch
):
    calling.text = CALL
    data = record_file(made_media, {"id": "look", "video": "media/one.mp4"})
    monkeypatch.setattr("qwenvl.use.check_server.TrainedModel._completion", lambda *_: None)
    assert checked(looking, made_media, data, "--generation_max_length", "90") == 0
    line, compared, verdict = capsys.readouterr().out.splitlines()
    assert "log-probs not compared" in line and compared.startswith("no log-probs are compared")
    assert verdict == "as trained, but for rounding"


def test_check_says_why_no_record_can_be_sent(looking, made_media, tmp_path, capsys):
    outside = record_file(tmp_path, {"id": "out", "video": str(made_media / "media/one.mp4")})
    with pytest.raises(SystemExit):
        checked(looking, made_media, outside)
    told = capsys.readouterr().err
    assert "asked.json[0].video" in told and "media root" in told and "--allow_outside_media" in told
    assert checked(looking, made_media, outside, "--generation_max_length", "8", "--allow_outside_media") == 0
    assert capsys.readouterr().out.startswith("out: ")
    meta = record_file(made_media, {"video": "media/one.mp4", "meta": {"video_start": 1}})
    with pytest.raises(SystemExit):
        checked(looking, made_media, meta)
    assert "asked.json[0]: it has `meta`" in capsys.readouterr().err
    gone = record_file(made_media, {"video": "media/gone.mp4"})
    with pytest.raises(SystemExit):
        checked(looking, made_media, gone)
    assert "gone.mp4 is no file" in capsys.readouterr().err
