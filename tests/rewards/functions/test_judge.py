"""Against a real HTTP server that speaks the protocol."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from qwenvl.rewards import RewardError, RewardSettings, build_rubric
from qwenvl.rewards.functions import judge

PROMPTS = [{"role": "system", "content": "s"}, {"role": "user", "content": "what is it?"}]


class Server:
    """A judge that finds answers with "good" in them correct; ``replies`` come first, as (status, text)."""

    def __init__(self):
        self.questions, self.keys, self.replies, self.lock = [], [], [], threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer.lock:
                    outer.questions.append(body["messages"][0]["content"])
                    outer.keys.append(self.headers.get("Authorization"))
                    status, text = outer.replies.pop(0) if outer.replies else (200, None)
                said = outer.questions[-1].split("<student_answer>")[-1].split("</student_answer>")[0]
                text = text or f"I see.\nVERDICT: {'correct' if 'good' in said else 'wrong'}"
                reply = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
                self.send_response(status)
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(judge, "FIRST_PAUSE", 0.01)
    for name in ("JUDGE_API_KEY", "OPENAI_API_KEY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Server()
    yield made
    made.http.shutdown()


@pytest.fixture
def ask(server, tmp_path):
    rubrics = []

    def run(*answers, solution="the truth", on_error="error", **settings):
        chosen = {"judge_base_url": server.url, "judge_model": "m", "judge_cache": str(tmp_path / "cache")} | settings
        chosen = RewardSettings(correctness_func="exact_match", judge_retries=2, **chosen)
        rubrics.append(build_rubric(["judge"], settings=chosen, on_error=on_error))
        columns = {"solution": [solution] * len(answers), "prompts": [PROMPTS] * len(answers)}
        columns["id"] = [f"r{row}" for row in range(len(answers))]
        return rubrics[-1].score(list(answers), columns, group_size=len(answers)).components[0]

    yield run
    for rubric in rubrics:
        rubric.close()


def test_rules_first_then_the_judge(ask, server):
    values = ask("<answer>The truth</answer>", "<answer>good</answer>", "<answer>bad</answer>", "good")
    assert values == [1.0, 1.0, 0.0, 0.0]
    assert len(server.questions) == 2  # not for what the rule finds equal, nor for what has no answer block
    assert "what is it?" in server.questions[0] and "the truth" in server.questions[0]


def test_the_values_of_the_verifier_recipe(ask):
    values = {"judge_correct": 1.0, "judge_wrong": -1.0, "judge_bad_format": -1.0}
    assert ask("<answer>good</answer>", "<answer>bad</answer>", "good", **values) == [1.0, -1.0, -1.0]


def test_verdicts_are_kept_on_disk(ask, server):
    assert ask("<answer>good</answer>", "<answer>bad</answer>") == [1.0, 0.0]
    assert ask("<answer>bad</answer>", "<answer>good</answer>") == [0.0, 1.0]
    assert len(server.questions) == 2
    ask("<answer>good</answer>", judge_model="another")
    assert len(server.questions) == 3


def test_failures_are_repeated(ask, server):
    server.replies = [(503, "busy"), (200, "no idea")]
    assert ask("<answer>good</answer>") == [1.0]
    assert len(server.questions) == 3


def test_a_failing_judge_is_an_error_and_never_a_value(ask, server):
    server.replies = [(503, "busy")] * 100
    with pytest.raises(
        RewardError, match=r"(?s)\"judge\" failed on record 'r0': JudgeError: m at .*after 3 tries: HTTP 503"
    ):
        ask("<answer>good</answer>")
    assert ask("<answer>bad</answer>", on_error="skip") == [None]


def test_what_cannot_get_better_is_not_repeated(ask, server):
    server.replies = [(401, "key?")]
    with pytest.raises(RewardError, match="after 1 tries: HTTP 401"):
        ask("<answer>good</answer>")


def test_no_server(ask):
    with pytest.raises(RewardError, match="after 3 tries: URLError"):
        ask("<answer>x</answer>", judge_base_url="http://127.0.0.1:9/v1", judge_timeout=1.0)


def test_key_and_prompt(ask, server, monkeypatch, tmp_path):
    monkeypatch.setenv("JUDGE_API_KEY", "secret")
    path = tmp_path / "prompt.txt"
    path.write_text('{"json": true} {solution} | {answer}')
    ask("<answer>{solution} {0}</answer>", judge_prompt=str(path))
    assert server.keys == ["Bearer secret"]
    assert server.questions == ['{"json": true} the truth | {solution} {0}']  # what is filled in is not filled again


def test_refusals(tmp_path):
    (tmp_path / "bad.txt").write_text("{answer}")
    url = {"judge_base_url": "http://x/v1", "judge_model": "m"}
    for settings, message in (
        ({}, "needs --judge_base_url"),
        ({**url, "judge_base_url": "file:///etc"}, "must begin with http"),
        ({**url, "judge_prompt": str(tmp_path / "bad.txt")}, "must contain {solution}"),
    ):
        with pytest.raises(RewardError, match=message):
            build_rubric(["judge"], settings=RewardSettings(**settings))


def test_verdicts_are_kept_in_the_cache_folder(ask, monkeypatch, tmp_path):
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "elsewhere"))
    ask("<answer>good</answer>", judge_cache=None)
    assert [path.read_text() for path in (tmp_path / "elsewhere" / "judge").glob("*/*")] == ["correct"]
