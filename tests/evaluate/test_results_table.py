"""An evaluation as a person reads it."""

import re
from dataclasses import replace

from qwenvl.evaluate.results import results_of, table
from tests.evaluate.test_results import scored
from tests.report.runs import LOOKED

PROTOCOL = {
    "data": {"dataset_use": "held", "records": 4, "of": 9, "clusters": 4, "cluster_by": "clips and images"},
    "decoding": {"method": "sampled", "samples": 2, "temperature": 0.7, "max_new_tokens": 64},
    "frames": {"video_fps": None, "base_interval": 2.0, "video_min_frames": 4, "video_max_frames": 8},
    "prompts": {"video_min_frame_pixels": 3136, "video_max_frame_pixels": 25088},
    "decoder": "pyav",
    "rewards": {"format": 0.3, "accuracy": 0.7},
    "passes": {"by": "accuracy", "at": 1.0},
    "seed": 5,
}


def model(name: str, **changes) -> dict:
    facts = {"name": name, "base": None, "family": "qwen3_vl", "positions": "timestamp", "dtype": "bfloat16"}
    return facts | {"template_hash": "0123456789", "prompts_hash": "abcdefghij", "trained_otherwise": ()} | changes


def test_what_is_told(tmp_path):
    rows = [
        *(row for n in range(4) for row in scored(n, [1.0, 0.0])),
        *(row for n in range(4) for row in scored(n, [0.5, 0.0], control="blank")),
        *(row for n in range(4) for row in scored(n, [1.0, 1.0], "sop", finish_reason="length")),
        *(row for n in range(3) for row in scored(n, [0.0, 0.0], "sop", "blank", ["", ""])),
        *scored(3, [0.5, 0.0], "sop", "blank"),
    ]
    results = results_of(rows, ["base", "sop"], ["none", "blank"], "accuracy", 1.0)
    facts = [model("base", base="org/b"), model("sop", trained_otherwise=(("video_max_frames", 16, 8),))]
    left_out = [{"doc_id": 9, "control": each, "error": "d[9] (id x): no file"} for each in ("none", "blank")]
    text = table({**results, "protocol": PROTOCOL, "models": facts, "left_out": left_out}, tmp_path)
    lines = text.splitlines()
    assert lines[0] == "held: 4 of 9 records, 2 completions at temperature 0.7 of each."
    assert "drawn over 4 groups of records (clips and images)" in lines[1]
    header = re.split(r"\s{3,}", lines[3].strip())
    assert header == ["accuracy", "passes", "pass@2", "format", "total", "no answer", "cut off", "tokens"]
    assert re.split(r"\s{3,}", lines[5])[:3] == ["sop", "1.000 [1.000, 1.000]", "1.000 [0.510, 1.000]"]
    assert "sop: 100.0% of the completions were cut at 64 tokens: raise --generation_max_length" in text
    blank = next(line for line in lines if line.startswith("blank"))
    assert "0.250, drop 0.250 [0.250, 0.250]" in blank and "0.062, drop 0.938 [0.812, 1.000] *" in blank
    assert "* sop, blank: not comparable, 75.0% of the completions have no answer." in text
    assert "sop - base: accuracy +0.500 [+0.500, +0.500], on the same 4 records: better on 4, equal on 0" in text
    assert "sop: was trained with --video_max_frames 16, and is evaluated with 8" in text
    assert "left out: 1 records, which no number above counts\n  d[9] (id x): no file" in text
    assert max(map(len, lines)) < 150


def test_looks_have_a_table(tmp_path):
    rows = [row for n in range(2) for row in scored(n, [1.0, 0.0], "sop")]
    rows = [replace(row, turns=LOOKED, evidence=((12.0, 18.0),)) for row in rows]
    results = results_of(rows, ["sop"], ["none"], "accuracy", 1.0)
    text = table({**results, "protocol": PROTOCOL, "models": [model("sop")], "left_out": []}, tmp_path)
    line = next(each for each in text.splitlines() if "100.0%" in each)
    assert re.split(r"\s{3,}", line) == [
        *("sop", "100.0%", "1.00", "0.500 [0.500, 0.500]", "-", "0.500 [0.500, 0.500]", "0.0%")
    ]
