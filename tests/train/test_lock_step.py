"""``ds3_gather_for_generation False``: two processes that split a model sample from it, a layer at a time."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from safetensors.torch import load_file

from qwenvl.run_log.log import read_rollouts
from tests.train.conftest import turns
from tests.train.test_distributed import (
    ENGINES,
    RECIPES,
    STOPS_APART,
    assert_same_update,
    launch,
    logged,
    write_records,
)


@pytest.fixture(scope="session")
def uneven_data(sop_data, tmp_path_factory) -> Path:
    """Five records: in steps of four, and in order, a process has two videos of other lengths, and then one more, while
    the other one has an image and a text, and then nothing."""
    return write_records(sop_data, (0, 1, 7, 6, 2), tmp_path_factory.mktemp("uneven") / "uneven.json")


def sampled(folder: Path) -> dict[tuple, str]:
    return {(row.split, row.step, row.record_id, row.sample): row.completion for row in read_rollouts(folder)}


def held(folder: Path) -> list[int]:
    """The most numbers of weights that each process had at a time while it sampled."""
    return [json.loads((folder / f"held-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("engine", ["zero3", "fsdp"])
def test_layers_gathered_one_by_one_give_the_completions_and_update_of_whole_weights(
    tiny_checkpoint, uneven_data, tmp_path, engine
):
    """Process 0 writes four tokens, process 1 one. The tower runs on as few patches at a time as it can. Greedy
    evaluation of five records begins, and the second step has no prompt for process 1."""
    if engine == "zero3":
        pytest.importorskip("deepspeed")
    start = tiny_checkpoint(initializer_range=0.1)
    flags = ENGINES[engine] | {"per_device_train_batch_size": 2, "train_sampling_strategy": "sequential"}
    flags |= {"generation_max_length": 4, "rollout_token_budget": 60, "check_parity": "every"}
    flags |= {"eval_dataset_use": uneven_data, "eval_on_start": True}
    whole, layers = (tmp_path / name for name in ("whole", "layers"))
    how = STOPS_APART | {"watches_weights": True}
    launch(2, start, uneven_data, whole, how=how, **flags)
    launch(2, start, uneven_data, layers, how=how, **flags, ds3_gather_for_generation=False)
    assert sampled(layers) == sampled(whole)
    ranks = [Path(layers, "rollouts", f"rank-{rank}.jsonl").read_text().splitlines() for rank in (0, 1)]
    drawn = [Counter((row["split"], row["step"], row["tokens"]) for row in map(json.loads, rows)) for rows in ranks]
    assert drawn[0]["train", 1, 4] == 6 and drawn[0]["train", 2, 4] == 3
    assert drawn[1]["train", 1, 1] == 6 and not any(key[1] == 2 for key in drawn[1])
    assert_same_update(layers, whole, start)
    total, most = most_held(start, engine)
    assert held(whole) == [total, total]
    assert max(held(layers)) <= most < total


def most_held(checkpoint: Path, engine: str) -> tuple[int, float]:
    """Numbers of all weights, and the most that a process may have of them: those of the largest layer, and what an
    engine keeps. ZeRO-3 keeps vectors of up to ten times the width, FSDP what is in no layer, and its half of all."""
    sizes, kept = Counter(), 0
    stored = load_file(checkpoint / "model.safetensors")
    width = json.loads((checkpoint / "config.json").read_text())["text_config"]["hidden_size"]
    for name, each in stored.items():
        layer = re.match(r".*(layers|blocks)\.\d+|.*merger", name)
        sizes[layer[0] if layer else name] += each.numel()
        kept += each.numel() * (each.numel() <= 10 * width)
    total, largest = sizes.total(), max(sizes.values())
    if engine == "zero3":
        return total, largest + kept
    layers = {name: size for name, size in sizes.items() if re.search(r"(layers|blocks)\.\d+$", name)}
    largest, outside = max(layers.values()), total - sum(layers.values())
    return total, outside + largest + (total - outside - largest) / 2


def test_layers_gathered_one_by_one_work_with_refills_adapters_and_a_reference(tiny_checkpoint, sop_data, tmp_path):
    """One process replaces a group while the other has nothing to replace. Each completion computes its prompt again,
    and the reference, the model that ZeRO-3 splits, gives the KL of the reward. Parity says that all is right."""
    pytest.importorskip("deepspeed")
    rows = [{"id": f"text-{n}", "conversations": turns("What comes next? " + "step " * n, "(1)")} for n in range(5)]
    image = {"image": str(sop_data.parent / "part.png"), "conversations": turns("<image>\nWhich?", "(3) fasten")}
    data, output = tmp_path / "rows.json", tmp_path / "run"
    data.write_text(json.dumps([*rows, {"id": "image-6", **image}]))
    flags = ENGINES["zero3"] | RECIPES["lora"] | {"train_sampling_strategy": "sequential", "filter_groups": True}
    flags |= {"shared_prefix": "off", "check_parity": "every", "generation_max_length": 4}
    flags |= {"advantage_estimator": "grpo(kl_in_reward=True)", "ds3_gather_for_generation": False, "max_steps": 3}
    launch(2, tiny_checkpoint(initializer_range=0.1), data, output, how={"reward": "alike"}, **flags)
    parities, rounds, penalties = zip(*logged(output, "parity/max", "filter/rounds", "penalty/kl"), strict=True)
    assert max(parities) < 1e-4 and min(rounds) == 0 and max(penalties) > 0.1
    ranks = [Path(output, "rollouts", f"rank-{rank}.jsonl").read_text().splitlines() for rank in (0, 1)]
    dropped = [[row["step"] for row in map(json.loads, rows) if row["dropped"]] for rows in ranks]
    assert dropped[0] != dropped[1] and any(dropped)
    assert any(record == "image-6" for _, _, record, _ in sampled(output))
