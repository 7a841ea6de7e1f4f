"""Makes small data sets for the recipes, where no data set is at hand: ``python make_records.py TASK FOLDER``.

Each task writes train and heldout records into FOLDER, and the pictures or clips that they name. The same seed gives
the same records.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from qwenvl.demo.clips import encode

THINK = "Think between <think> and </think>, then give {} between <answer> and </answer>."
COLOURS = {"red": (214, 69, 65), "green": (63, 160, 90), "blue": (65, 105, 214), "yellow": (232, 190, 60)}
BACKGROUND = (38, 42, 48)
FPS, OPTIONS = 4, {"preset": "veryfast", "threads": "1"}  # of clips


def record(name: str, question: str, answer: str, **fields: Any) -> dict[str, Any]:
    """One row of a data set. The media's tags already stand in the question."""
    turns = [{"from": "human", "value": question}, {"from": "gpt", "value": f"<answer>{answer}</answer>"}]
    return {"id": name, "conversations": turns, **fields}


def clevr_count(folder: Path, name: str, rng: random.Random) -> dict[str, Any]:
    """A picture of one to six things on a table. How many are there?"""
    number = rng.randint(1, 6)
    picture = Image.new("RGB", (112, 112), BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for cell in rng.sample(range(16), number):
        x, y = 28 * (cell % 4) + rng.randint(3, 7), 28 * (cell // 4) + rng.randint(3, 7)
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape((x, y, x + 18, y + 18), fill=rng.choice(list(COLOURS.values())))
    picture.save(folder / f"{name}.png")
    question = "<image>\nHow many things are in the picture? " + THINK.format("the number")
    return record(name, question, str(number), image=f"{name}.png")


def countdown(folder: Path, name: str, rng: random.Random) -> dict[str, Any]:
    """Three or four numbers and a target that they reach. Text only."""
    while True:
        nums = [rng.randint(1, 99) for _ in range(rng.choice([3, 4]))]
        value, expression = Fraction(nums[0]), str(nums[0])
        for number in nums[1:]:
            sign = rng.choice("+-*/")
            value = {"+": value + number, "-": value - number, "*": value * number, "/": value / number}[sign]
            expression = f"({expression} {sign} {number})"
        if value.denominator == 1 and 1 <= value <= 999:
            break
    rng.shuffle(nums)  # their order must not give the expression away
    question = (
        f"Using the numbers {nums}, make {value} with + - * / and parentheses; use each number once. "
        + THINK.format("the expression")
    )
    return record(name, question, expression, nums=nums, target=int(value))


def grounding(folder: Path, name: str, rng: random.Random) -> dict[str, Any]:
    """A clip in which a square lights up for a while. From when to when?"""
    duration = rng.randint(6, 10)
    start = rng.randint(0, duration - 3)
    end = start + rng.randint(2, duration - start)
    bright = range(start * FPS, end * FPS)
    colour = rng.choice(list(COLOURS.values()))
    frames = (_frame([(38, 38, colour if k in bright else (60, 64, 70))]) for k in range(duration * FPS))
    encode(folder / f"{name}.mp4", frames, FPS, OPTIONS)
    question = "<video>\nFrom when to when is the square lit? " + THINK.format('the seconds as "start to end"')
    return record(name, question, f"{start} to {end}", video=f"{name}.mp4", duration=duration)


def video_choice(folder: Path, name: str, rng: random.Random) -> dict[str, Any]:
    """A clip of a square that moves. Where does it move, of four choices in an order drawn by lot?"""
    moves = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
    way, (dx, dy) = rng.choice(list(moves.items()))
    colour, choices = rng.choice(list(COLOURS.values())), rng.sample(list(moves), 4)
    steps = np.linspace(-34, 34, 4 * FPS)
    encode(folder / f"{name}.mp4", (_frame([(38 + dx * s, 38 + dy * s, colour)]) for s in steps), FPS, OPTIONS)
    listed = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", choices, strict=True))
    question = f"<video>\nWhere does the square move?\n{listed}\n" + THINK.format("the letter")
    return record(name, question, "ABCD"[choices.index(way)], video=f"{name}.mp4")


def mixed(folder: Path, name: str, rng: random.Random) -> dict[str, Any]:
    """Text, pictures and clips side by side. Each record names the reward that scores it."""
    task, reward = rng.choice([(countdown, "countdown"), (clevr_count, "count"), (video_choice, "multiple_choice")])
    return {**task(folder, name, rng), "reward": ["strict_format", reward]}


TASKS: dict[str, Callable[[Path, str, random.Random], dict[str, Any]]] = {
    task.__name__: task for task in (clevr_count, countdown, grounding, video_choice, mixed)
}


def make(task: str, folder: Path, train: int = 400, heldout: int = 100, seed: int = 0) -> None:
    """Write the records of a task and their media. Those of procedures are the demo's."""
    if task == "procedure":
        from qwenvl.demo.clips import ClipSettings, make_clips

        make_clips(folder, ClipSettings(seed=seed, train=train, heldout=heldout))
        return
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("heldout", heldout)):
        # A generator of its own for each record: a larger set begins with the same records.
        rows = [TASKS[task](folder, f"{split}-{k:05d}", random.Random(f"{seed} {split} {k}")) for k in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _frame(squares: list[tuple[float, float, tuple[int, int, int]]]) -> np.ndarray:
    """112 x 112 x 3, uint8, with squares at the given corners."""
    picture = Image.new("RGB", (112, 112), BACKGROUND)
    for x, y, colour in squares:
        ImageDraw.Draw(picture).rectangle((x, y, x + 36, y + 36), fill=colour)
    return np.asarray(picture)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=[*TASKS, "procedure"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=400, help="training records")
    parser.add_argument("--heldout", type=int, default=100, help="records that nothing learns from")
    parser.add_argument("--seed", type=int, default=0)
    make(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
