"""A training run with a judge that sees, behind a real HTTP server."""

from dataclasses import replace

from qwenvl.run_log.log import read_metrics, read_rollouts
from tests.rewards.functions.test_judge import server  # noqa: F401 (a fixture)


def test_a_run_shows_the_judge_the_frames_of_its_prompts(make_trainer, make_clip, make_row, write_rows, server):  # noqa: F811
    for name in ("a.mp4", "b.mp4"):
        make_clip(name, 30)
    rows = [
        make_row("<video>\nWhich?", video="a.mp4", id="a", meta={"video_start": 1.0, "video_end": 2.0}),
        make_row("<video>\nWhich?", video="b.mp4", id="b"),
    ]
    judge = f"judge(base_url='{server.url}', model='m', frames=2, correctness_func='exact_match')"
    trainer = make_trainer(
        functions=["format", judge],
        dataset_use=str(write_rows(rows)),
        response_format="answer_only",
        gradient_accumulation_steps=2,
        max_steps=1,
    )
    engine = trainer.kernels.engine
    draw, answers = engine.draw, [f"<answer>{word}</answer>" for word in ("good", "bad", "also good")]
    engine.draw = lambda *args, **named: replace(draw(*args, **named), texts=answers * 2)
    trainer.train()
    rollouts = list(read_rollouts(trainer.args.output_dir))
    expected = []
    for rollout in rollouts:
        [clip] = rollout.clips
        ends = [(clip.indices[n], clip.times[n]) for n in (0, -1)]
        expected.append([(f"The frame at {time:.2f} s:", number) for number, time in ends])
        assert all(abs(time - number / 10) < 1e-6 for number, time in ends)
        assert rollout.rewards == {"format": 1.0, "judge": float("good" in rollout.completion)}
    assert sorted(server.seen) == sorted(expected) and len(expected) == 6
    assert {tuple(number for _, number in seen) for seen in server.seen} == {(10, 20), (0, 29)}
    [row] = [row for row in read_metrics(trainer.args.output_dir) if "loss" in row]
    assert abs(row["reward/judge"] - 2 / 3) < 1e-6
