"""The same four questions in every kind of file, with their media beside them or within their rows.

Each is read and made into the same prompts.
"""

import base64
import csv
import gzip
import json
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from qwenvl.data.collator import GRPOCollator
from qwenvl.data.dataset import load_dataset

RATE, SHOWN = 10, (5, 8, 11, 14)  # frames of the clip's 0.5 to 1.45 seconds, four, evenly spaced
SPAN = {"video_start": 0.5, "video_end": 1.45}
QUESTIONS = {
    "clip": ("<video>\nWhich steps? (1) pick (2) place", "(2) place", ["video"]),
    "picture": ("<image>\nWhich part? (1) lid (2) fan", "(1) lid", ["image"]),
    "both": ("<video><image>\nIs it shown? (1) yes (2) no", "(1) yes", ["video", "image"]),
    "words": ("What comes after (1) pick?", "(2) place", []),
}


def pictures() -> list[np.ndarray]:
    """20 frames of few colours: a bar that fills, a block that moves."""
    frames = []
    for n in range(20):
        frame = np.full((56, 84, 3), 40, np.uint8)
        frame[:8, : 4 * n + 4] = (10 * n, 0, 255)
        frame[16:40, 2 * n : 2 * n + 20] = (10 * n, 250 - 10 * n, 120)
        frames.append(frame)
    return frames


@pytest.fixture(scope="module")
def media(tmp_path_factory) -> Path:
    """A folder with the clip, stored without loss, and one picture."""
    root = tmp_path_factory.mktemp("media")
    with av.open(str(root / "clip.mp4"), "w") as container:
        stream = container.add_stream("libx264rgb", rate=RATE, options={"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = 84, 56, "rgb24"
        for frame in pictures():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    Image.fromarray(pictures()[7]).save(root / "part.png")
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QWENVL_CACHE", str(tmp_path / "cache"))


def rows(video="clip.mp4", image="part.png"):
    """(id, question, solution, {"video": ..., "image": ...}, the span of the clip) of each question."""
    given = {"video": video, "image": image}
    for name, (question, answer, kinds) in QUESTIONS.items():
        yield name, question, answer, {kind: given[kind] for kind in kinds}, SPAN if "video" in kinds else {}


def conversations():
    return [
        {"id": name, "conversations": [{"from": "human", "value": ask}, {"from": "gpt", "value": answer}]} | own | span
        for name, ask, answer, own, span in rows()
    ]


def prompts(video="clip.mp4", image="part.png"):
    """As other trainers write them to parquet."""
    return [
        {
            "id": name,
            "data_source": "assembly",
            "prompt": [{"role": "user", "content": ask}],
            "videos": [own["video"]] if "video" in own else None,
            "images": [own["image"]] if "image" in own else None,
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"index": i},
        }
        | {key: span.get(key) for key in SPAN}
        for i, (name, ask, answer, own, span) in enumerate(rows(video, image))
    ]


def plain(ask="prompt", answer="solution"):
    """One question a row, media in columns."""
    return [
        {"id": name, ask: question, answer: solution} | own | span for name, question, solution, own, span in rows()
    ]


def write_json(path: Path, made: list[dict]) -> Path:
    lines = ".jsonl" in path.suffixes
    data = ("\n".join(map(json.dumps, made)) if lines else json.dumps(made, indent=1)).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_csv(path: Path, made: list[dict]) -> Path:
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        names = list(dict.fromkeys(name for row in made for name in row))
        writer = csv.DictWriter(file, names, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(made)
    return path


def table(made: list[dict], pictures=False):
    datasets = pytest.importorskip("datasets")
    columns = {name: [row.get(name) for row in made] for name in made[0]}
    found = datasets.Dataset.from_dict(columns)
    return found.cast_column("images", datasets.List(datasets.Image())) if pictures else found


def write_parquet(path: Path, made: list[dict], pictures=False) -> Path:
    table(made, pictures).to_parquet(path)
    return path


def as_bytes(root: Path):
    return {"video": (root / "clip.mp4").read_bytes(), "image": (root / "part.png").read_bytes()}


def as_dicts(root: Path):
    return {kind: {"bytes": data, "path": f"{kind}.bin"} for kind, data in as_bytes(root).items()}


def as_base64(root: Path):
    return {kind: base64.b64encode(data).decode() for kind, data in as_bytes(root).items()}


def as_pil(root: Path):  # clips stay paths
    return {"image": Image.open(root / "part.png")}


def saved(root: Path) -> Path:
    table(prompts(**as_pil(root)), pictures=True).save_to_disk(root / "saved")
    for name in ("clip.mp4", "part.png"):  # media paths start at the folder itself
        (root / "saved" / name).write_bytes((root / name).read_bytes())
    return root / "saved"


def repository(root: Path) -> str:
    (root / "repository" / "data").mkdir(parents=True, exist_ok=True)
    write_parquet(root / "repository" / "data" / "test-00000-of-00001.parquet", prompts(**as_dicts(root)))
    return f"hf:{root}/repository:test"


FORMATS = {
    "conversations, array": lambda root: write_json(root / "array.json", conversations()),
    "conversations, lines": lambda root: write_json(root / "lines.jsonl", conversations()),
    "conversations, zipped array": lambda root: write_json(root / "array.json.gz", conversations()),
    "conversations, zipped lines": lambda root: write_json(root / "lines.jsonl.gz", conversations()),
    "parquet, paths": lambda root: write_parquet(root / "paths.parquet", prompts()),
    "parquet, bytes": lambda root: write_parquet(root / "bytes.parquet", prompts(**as_bytes(root))),
    "parquet, bytes and path": lambda root: write_parquet(root / "dicts.parquet", prompts(**as_dicts(root))),
    "parquet, base64": lambda root: write_parquet(root / "base64.parquet", prompts(**as_base64(root))),
    "parquet, PIL": lambda root: write_parquet(root / "pil.parquet", prompts(**as_pil(root)), pictures=True),
    "CSV": lambda root: write_csv(root / "plain.csv", plain()),
    "TSV, other names": lambda root: write_csv(root / "named.tsv", plain("question", "answer")),
    "saved to disk": saved,
    "by name": repository,
}
COLUMNS = {"TSV, other names": "question=prompt,answer=solution"}


def parsed(columns: str | None) -> dict[str, str]:
    return dict(pair.split("=") for pair in columns.split(",")) if columns else {}


@pytest.fixture(scope="module")
def collator(tiny_checkpoint):
    return GRPOCollator(AutoProcessor.from_pretrained(tiny_checkpoint(initializer_range=0.1)))


@pytest.fixture(scope="module")
def reference(media, collator):
    """The prompts of the first format, after a look at what they hold."""
    batch = batch_of(FORMATS["conversations, array"](media), collator)
    assert [info.indices for infos in batch.frames for info in infos] == [SHOWN] * 2
    texts = collator.processor.batch_decode(batch.input_ids, skip_special_tokens=True)
    for (ask, _, _), text in zip(QUESTIONS.values(), texts, strict=True):
        assert ask.replace("<video>", "").replace("<image>", "") in text
    return batch


def batch_of(source, collator, columns=None):
    dataset = load_dataset(str(source), columns=parsed(columns), training=False, video_max_frames=4)
    assert [dataset[i].record.solution for i in range(4)] == [answer for _, answer, _ in QUESTIONS.values()]
    for sample in (dataset[0], dataset[2]):
        seen = sample.videos[0].frames.permute(0, 2, 3, 1).numpy()
        np.testing.assert_array_equal(seen, [pictures()[n] for n in SHOWN])
    return collator([dataset[i] for i in range(4)])["prompts"]


def check_prompts(batch, reference):
    assert [record.id for record in batch.records] == list(QUESTIONS)
    for name in ("input_ids", "pixel_values", "pixel_values_videos", "image_grid_thw", "video_grid_thw"):
        torch.testing.assert_close(getattr(batch, name), getattr(reference, name), rtol=0, atol=0)
    torch.testing.assert_close(batch.seconds_per_grid, reference.seconds_per_grid)
    for infos, others in zip(batch.frames, reference.frames, strict=True):
        assert [info.times for info in infos] == [pytest.approx(info.times) for info in others]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_prompts(name, media, collator, reference):
    check_prompts(batch_of(FORMATS[name](media), collator, COLUMNS.get(name)), reference)
