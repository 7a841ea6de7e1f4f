"""Against a real HTTP server that speaks the protocol."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from qwenvl.option import row_text
from qwenvl.rewards import RewardError, build_rubric

PROMPTS = [{"role": "system", "content": "s"}, {"role": "user", "content": "what is it?"}]


class Server:
    """A judge that finds answers with "good" in them correct; ``replies`` come first, as (status, text)."""

    def __init__(self):
        self.questions, self.keys, self.replies, self.lock = [], [], [], threading.Lock()
        self.silent, self.meeting, self.at_once, self.most_at_once = threading.Event(), None, 0, 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer.at_once)
                if outer.meeting:
                    outer.meeting.wait(60)
                while outer.silent.is_set():
                    time.sleep(0.01)
                with outer.lock:
                    outer.at_once -= 1
                    outer.questions.append(body["messages"][0]["content"])
                    outer.keys.append(self.headers.get("Authorization"))
                    status, text = outer.replies.pop(0) if outer.replies else (200, None)
                said = outer.questions[-1].split("<student_answer>")[-1].split("</student_answer>")[0]
                text = text or f"I see.\nVERDICT: {'correct' if 'good' in said else 'wrong'}"
                reply = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.send_header("retry-after-ms", "1")  # the client's own pauses are longer
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


@pytest.fixture
def server(monkeypatch):
    for name in ("JUDGE_API_KEY", "OPENAI_API_KEY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def ask(server):
    rubrics = []

    def run(*answers, solution="the truth", on_error="error", **settings):
        chosen = {"base_url": server.url, "model": "m", "retries": 2, "correctness_func": "exact_match"} | settings
        rubrics.append(build_rubric(row_text({"judge": chosen}), on_error=on_error))
        columns = {"solution": [solution] * len(answers), "prompts": [PROMPTS] * len(answers)}
        columns["id"] = [f"r{row}" for row in range(len(answers))]
        return rubrics[-1].score(list(answers), columns).components[0]

    yield run
    for rubric in rubrics:
        rubric.close()


def test_rules_first_then_the_judge(ask, server):
    values = ask("<answer>The truth</answer>", "<answer>good</answer>", "<answer>bad</answer>", "good")
    assert values == [1.0, 1.0, 0.0, 0.0]
    assert len(server.questions) == 2  # not for what the rule finds equal, nor for what has no answer block
    assert "what is it?" in server.questions[0] and "the truth" in server.questions[0]


def test_failures_are_repeated(ask, server):
    server.replies = [(503, "busy"), (429, "slowly")]
    assert ask("<answer>good</answer>") == [1.0]
    assert len(server.questions) == 3


@pytest.mark.parametrize(
    ("replies", "message", "requests"),
    [
        ([(200, "no idea")] * 100, r"JudgeError: m at http.*: the reply holds no verdict: 'no idea'", 1),
        ([(503, "busy")] * 100, r"(?s)\"judge\" failed on record 'r0': JudgeError: m at .*: HTTP 503: .*busy", 3),
        ([(401, "key?")], r"HTTP 401: .*key", 1),  # what cannot get better is not repeated
    ],
)
def test_a_failing_judge_is_an_error_and_never_a_value(ask, server, replies, message, requests):
    server.replies = [*replies]
    with pytest.raises(RewardError, match=message):
        ask("<answer>good</answer>")
    assert len(server.questions) == requests
    if replies[1:]:
        assert ask("<answer>bad</answer>", on_error="skip") == [None]


def test_a_server_that_does_not_answer(ask, server):
    server.silent.set()
    with pytest.raises(RewardError, match=r"JudgeError: m at http.*: APITimeoutError"):
        ask("<answer>x</answer>", timeout=0.05)
    server.silent.clear()


def test_requests_at_a_time(ask, server):
    """The server holds each reply until two are asked for: a third one comes only after a reply."""
    server.meeting = threading.Barrier(2)
    assert ask(*(f"<answer>good {i}</answer>" for i in range(6)), concurrency=2) == [1.0] * 6
    assert server.most_at_once == 2


def test_key_and_prompt(ask, server, monkeypatch, tmp_path):
    monkeypatch.setenv("JUDGE_API_KEY", "secret")
    path = tmp_path / "prompt.txt"
    path.write_text('{"json": true} {solution} | {answer}')
    ask("<answer>{solution} {0}</answer>", prompt=str(path))
    assert server.keys == ["Bearer secret"]
    assert server.questions == ['{"json": true} the truth | {solution} {0}']  # what is filled in is not filled again


def test_refusals(tmp_path):
    (tmp_path / "bad.txt").write_text("{answer}")
    url = {"base_url": "http://x/v1", "model": "m"}
    for settings, message in (
        ({}, "the judge needs a server and a model"),
        ({**url, "base_url": "file:///etc"}, "must begin with http"),
        ({**url, "prompt": str(tmp_path / "bad.txt")}, "must contain {solution}"),
    ):
        with pytest.raises(RewardError, match=message):
            build_rubric([row_text({"judge": settings})])
