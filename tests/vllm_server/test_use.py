"""``qwenvl label`` and ``qwenvl serve`` sample at a real server what the local engine samples."""

import csv

import pytest

from qwenvl.cli import main as qwenvl
from tests.made_clips import write_clip
from tests.use.running import FLAGS, QUESTION, Running, video
from tests.vllm_server.policy import WIDE

pytestmark = pytest.mark.vllm
SMALL = ("--video_max_frames", "6", "--video_max_frame_pixels", "3136", "--video_min_frame_pixels", "3136")


def test_label_and_serve_answer_as_with_the_local_engine(tiny_checkpoint, start_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tiny_checkpoint("qwen3_vl", **WIDE)
    (tmp_path / "model").symlink_to(model)
    for name, frames in (("one", 40), ("two", 20)):
        write_clip(tmp_path / "media" / f"{name}.mp4", frames, size=(160, 120))
    served = ("--rollout_engine", "vllm_server", "--vllm_server", start_server(model).client.address)
    tables = []
    for output, engine in (("local.csv", ()), ("served.csv", served)):
        words = ("label", "model", "media", "--question", QUESTION, "--output", output)
        assert qwenvl([*words, *FLAGS, *SMALL, *engine]) == 0
        with open(output, encoding="utf-8", newline="") as file:
            tables.append([*csv.DictReader(file)])
    server = Running(tmp_path, *SMALL, *served)
    try:
        answers = [server.ask(video(f"{name}.mp4"), QUESTION, logprobs=True).choices[0] for name in ("one", "two")]
    finally:
        server.end()
    for local, row, answer in zip(*tables, answers, strict=True):
        assert row["text"] == local["text"] == answer.message.content and not row["error"]
        assert row["finish_reason"] == local["finish_reason"] == answer.finish_reason
        content = answer.logprobs.content
        means = [float(row["logprob"]), sum(each.logprob for each in content) / len(content)]
        assert means == pytest.approx([float(local["logprob"])] * 2, abs=1e-4)
