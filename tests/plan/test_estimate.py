"""Numbers redone by hand, on a model whose widths are small enough for that."""

from dataclasses import replace

import pytest

from qwenvl.model.vision import tower
from qwenvl.plan.activations import embedded_bytes, layer_bytes, saved_bytes
from qwenvl.plan.estimate import PARTS, estimate
from qwenvl.plan.job import Job, Precision
from qwenvl.plan.logits import drawn_logits_bytes, trained_logits_bytes
from qwenvl.plan.optimizer import optimizer_bytes
from qwenvl.plan.sampling import cache_bytes, scores_bytes
from qwenvl.plan.shapes import Linear, Shapes, Text, Vision
from qwenvl.plan.sharding import shares_of
from qwenvl.plan.table import memory_lines
from qwenvl.plan.vision import (
    PIECE,
    features_bytes,
    host_bytes,
    merger_again_bytes,
    merger_saved_bytes,
    tower_bytes,
    waiting_bytes,
)
from qwenvl.plan.weights import Weights, gradient_bytes, reference_bytes, rounded_bytes, sampled_bytes

TEXT = Text(
    layers=("full_attention",) * 2,
    hidden=8,
    heads=2,
    key_value_heads=1,
    head=4,
    intermediate=16,
    vocabulary=100,
    normed_heads=False,
    gated=False,
)
VISION = Vision(
    blocks=2, hidden=4, intermediate=8, saved_products=4, matrices=3, root_mean_square=True, patch_values=12, merged=4,
    mergers=1, heads=1, window=0, full_blocks=2,
)  # fmt: skip
SHAPES = Shapes(TEXT, VISION)
JOB = Job(tokens=10, patches=16, group=3, length=5)
PARAMETERS = [
    ("model.language_model.embed_tokens.weight", (100, 8), 4, True),
    ("model.language_model.layers.0.mlp.up_proj.weight", (16, 8), 4, True),
    ("model.language_model.layers.1.mlp.up_proj.weight", (16, 8), 4, True),
    ("model.language_model.layers.1.norm.weight", (8,), 4, True),
    ("model.visual.blocks.0.weight", (4, 4), 4, False),
]
WEIGHTS = Weights.of(PARAMETERS, layers=2)


def test_weights_are_counted():
    assert WEIGHTS.trained == 800 + 128 + 128 + 8
    assert WEIGHTS.held == 4 * (WEIGHTS.trained + 16)
    assert (WEIGHTS.layer, WEIGHTS.head, WEIGHTS.tied) == ((128 + 128 + 8) // 2, 800, True)
    assert WEIGHTS.rounded == 800 + 128 + 128  # no norms
    assert gradient_bytes(WEIGHTS, JOB) == 4 * WEIGHTS.trained
    assert rounded_bytes(WEIGHTS, JOB) == 0
    assert rounded_bytes(WEIGHTS, Job(tokens=1, patches=0, precision=Precision(4, 2))) == 2 * WEIGHTS.rounded


@pytest.mark.parametrize(
    ("reference", "engine", "expected"),
    [
        ("none", "none", 0),
        ("adapter", "none", 0),
        ("copy", "none", 4 * 1064),
        ("other", "none", 4 * 1080),
        ("copy", "zero3", 4 * 1080),
    ],
)
def test_the_reference_shares_what_is_frozen(reference, engine, expected):
    assert reference_bytes(WEIGHTS, Job(tokens=1, patches=0, reference=reference, engine=engine)) == expected


def test_a_prompt_is_computed_once_for_all_its_completions():
    assert JOB.row_tokens == 10 + 3 * 4  # a completion's last token predicts nothing
    assert Job(tokens=10, patches=16, group=3, length=5, shared=False).row_tokens == 3 * 15
    assert Job(tokens=10, patches=16, prompts=4, group=3, length=5, token_budget=60).drawn_together == 2
    assert Job(tokens=10, patches=16, prompts=4, group=3, length=5, token_budget=1).drawn_together == 1


def test_what_a_layer_keeps():
    norms = 2 * (3 * 8 + 1)  # input, normalised input, output, and the root
    attention = 8 + 4 + 4 + 8 + 2  # queries, keys, values, output, log-sum-exp
    products = 4 * 16
    each = norms + attention + products
    assert layer_bytes(TEXT, "full_attention", JOB) == 22 * 4 * each
    assert saved_bytes(TEXT, JOB) == 2 * 22 * 4 * each
    checkpointed = Job(tokens=10, patches=16, group=3, length=5, checkpointing=True)
    assert saved_bytes(TEXT, checkpointed) == 2 * 22 * 4 * 8
    offloaded = Job(tokens=10, patches=16, group=3, length=5, activation_offload=True)
    assert saved_bytes(TEXT, offloaded) == 0


def test_sampling_keeps_keys_and_values_or_a_state():
    assert cache_bytes(TEXT, JOB) == 2 * (4 + 4) * (10 + 3 * 5) * 4
    assert scores_bytes(TEXT, JOB) == 3 * 2 * 15 * 3 * 4
    linear = Linear(heads=2, key_width=3, value_width=5, channels=22, kernel=4)
    mixed = Text(("linear_attention", "full_attention"), 8, 2, 1, 4, 16, 100, True, True, linear=linear)
    assert cache_bytes(mixed, JOB) == (4 + 4) * 25 * 4 + 3 * (22 * 4 * 4 + 2 * 3 * 5 * 4)


def test_logits_are_a_chunk():
    assert trained_logits_bytes(100, JOB) == 15 * 100 * 16  # fewer tokens than fit
    assert trained_logits_bytes(100, Job(tokens=1, patches=0, logit_bytes=3200)) == 2 * 100 * 16
    assert drawn_logits_bytes(100, JOB) == 3 * 100 * 36
    assert drawn_logits_bytes(100, Job(tokens=1, patches=0, group=3, narrows=False)) == 3 * 100 * 16


def test_features_and_pixels():
    job = Job(tokens=10, patches=16, prompts=2, micro_batches=3)
    assert features_bytes(VISION, job) == 6 * 16 * 4 * 4
    assert host_bytes(VISION, job) == 6 * 16 * 12
    assert features_bytes(VISION, Job(tokens=10, patches=16, encoded=False)) == 16 * 12 * 4
    waiting = replace(job, in_files=True)
    assert features_bytes(VISION, waiting, 2) == 2 * 16 * 4 * 4 and features_bytes(VISION, waiting, 9) == 6 * 16 * 4 * 4
    assert features_bytes(VISION, job, 2) == 6 * 16 * 4 * 4 and host_bytes(VISION, waiting) == 0
    assert merger_saved_bytes(VISION, JOB) == 16 * 4 * 4 * 4
    assert merger_saved_bytes(VISION, Job(tokens=10, patches=16, mergers_learn=False)) == 0


def test_the_tower_is_given_the_pixels_of_one_micro_batch():
    job = Job(tokens=10, patches=16, prompts=2, micro_batches=3)
    assert waiting_bytes(VISION, job) == 2 * 16 * 12  # bytes on a GPU, beside those in the memory of the host
    assert waiting_bytes(VISION, replace(job, on_host=True)) == 0  # where they are already
    assert waiting_bytes(VISION, replace(job, on_host=True, in_files=True)) == 2 * 16 * 12
    moments = {phase.name: phase for phase in estimate(SHAPES, WEIGHTS, job).phases}
    assert moments["vision"].parts["activations"] == tower_bytes(VISION, job, 32) + 2 * 16 * 12


def test_a_tower_that_runs_once_takes_some_frames_at_a_time():
    assert PIECE == tower.PIECE
    of_piece = tower_bytes(VISION, JOB, PIECE)
    assert tower_bytes(VISION, JOB, PIECE - 4) < of_piece == tower_bytes(VISION, JOB, 10 * PIECE)
    assert tower_bytes(VISION, replace(JOB, encoded=False), 10 * PIECE) == 10 * of_piece


def test_mergers_keep_nothing_where_they_run_again():
    again = replace(JOB, checkpointing=True)
    assert merger_saved_bytes(VISION, again) == merger_again_bytes(VISION, JOB) == 0
    assert merger_again_bytes(VISION, again) == (4 + 2) * 16 * 4 * 4
    assert merger_saved_bytes(VISION, replace(again, encoded=False)) == 16 * 4 * 4 * 4
    moments = {phase.name: phase for phase in estimate(SHAPES, WEIGHTS, again).phases}
    angles, streams = 22 * 2 * 4 * 4, 22 * 8 * 4  # 10 + 3 x 4 tokens, heads of width 4, embeddings of width 8
    assert moments["backward of the mergers"].parts["activations"] == 6 * 16 * 4 * 4 + angles + 3 * streams


def test_a_forward_holds_embeddings_and_features():
    angles = 10 * 2 * 4 * 4
    # 10 embeddings of width 8, 16 / 4 merged patches as they were made and as they were put among them.
    assert embedded_bytes(TEXT, VISION, 10, 16, JOB) == 10 * 8 * 4 + angles + 2 * 4 * 8 * 4
    deeper = replace(VISION, mergers=3)  # two of them, each of whose features are there twice
    more = embedded_bytes(TEXT, deeper, 10, 16, JOB) - embedded_bytes(TEXT, VISION, 10, 16, JOB)
    assert more == 2 * 2 * 4 * 8 * 4
    half = replace(JOB, precision=Precision(4, 2))  # what mergers make is in half precision
    assert embedded_bytes(TEXT, deeper, 10, 16, half) == 10 * 8 * 4 + angles + 4 * 8 * (2 + 4 + 4 * 2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("adamw_torch_fused", 8.0),
        ("adamw_8bit", 2 * (1 + 4 / 256)),
        ("paged_lion_32bit", 4.0),
        ("sgd", 0.0),
        ("new", 8),
    ],
)
def test_what_optimizers_keep(name, expected):
    assert optimizer_bytes(WEIGHTS, Job(tokens=1, patches=0, optimizer=name)) == round(expected * 1064)


def test_processes_share():
    def shares(engine):
        return shares_of(Job(tokens=1, patches=0, engine=engine, processes=4))

    assert (shares("ddp").gradients, shares("ddp").buckets) == (1.0, 1.0)
    assert (shares("zero2").weights, shares("zero2").gradients, shares("zero2").optimizer) == (1.0, 0.25, 0.25)
    assert (shares("zero3").weights, shares("zero3").gradients) == (0.25, 0.25)


def test_weights_while_completions_are_sampled():
    def sampled(engine, gathers):
        return sampled_bytes(WEIGHTS, replace(JOB, engine=engine, processes=4, gathers=gathers))

    assert (WEIGHTS.layer_held, WEIGHTS.outside, WEIGHTS.widest) == (4 * 136, 4 * 800, 4 * 800)
    assert {sampled(engine, True) for engine in ("none", "ddp", "zero2", "zero3", "fsdp")} == {4 * 1080}
    assert sampled("ddp", False) == 4 * 1080
    assert sampled("zero3", False) == 1080 + 4 * 800  # its share, and the embeddings
    assert sampled("fsdp", False) == 4 * 800 + 4 * 136 + (4 * 1080 - 4 * 936) / 4
    made = estimate(SHAPES, WEIGHTS, replace(JOB, engine="zero3", processes=4, gathers=False))
    weights = {phase.name: phase.parts["weights"] for phase in made.phases}
    assert (weights["vision"], weights["prefill"], weights["backward"]) == (1080, 4280, 1080)


def test_phases_sum_up_their_parts():
    made = estimate(SHAPES, WEIGHTS, JOB)
    for phase in made.phases:
        assert tuple(phase.parts) == PARTS and phase.total == sum(phase.parts.values())
        assert phase.parts["weights"] == WEIGHTS.held and phase.parts["optimizer"] == 8 * 1064
    assert made.peak == max(phase.total for phase in made.phases) == made.fullest.total
    update = made.phases[-1].parts
    assert (update["gradients"], update["activations"]) == (4 * 1064, 0)


def test_where_servers_sample_nothing_of_sampling_is_here():
    names = [phase.name for phase in estimate(SHAPES, WEIGHTS, replace(JOB, samples=False)).phases]
    assert "vision" in names and not {"prefill", "decoding"} & set(names)


def test_a_warm_up_samples_nothing_and_makes_features_when_it_is_their_turn():
    job = replace(JOB, micro_batches=3, samples=False, reference="none")
    taught = replace(job, taught=True)
    assert features_bytes(VISION, taught, 1) == 16 * 4 * 4 and features_bytes(VISION, job, 1) == 3 * 16 * 4 * 4
    phases = {phase.name: phase.parts for phase in estimate(SHAPES, WEIGHTS, taught).phases}
    assert list(phases)[:2] == ["vision", "backward"]
    assert phases["vision"]["gradients"] == 4 * 1064  # of the micro-batches before
    assert phases["vision"]["features"] == 16 * 4 * 4
    header = next(memory_lines(estimate(SHAPES, WEIGHTS, taught)))
    assert header.split() == ["vision", "training"]
    assert next(memory_lines(estimate(SHAPES, WEIGHTS, JOB))).split() == ["sampling", "training"]


def test_gradients_of_earlier_micro_batches_stay():
    once, again = (
        estimate(SHAPES, WEIGHTS, Job(tokens=10, patches=16, group=3, length=5, micro_batches=n)) for n in (1, 2)
    )
    named = {phase.name: phase for phase in again.phases}
    assert named["backward"].parts["gradients"] == 4 * 1064
    assert {phase.name: phase for phase in once.phases}["backward"].parts["gradients"] == 0


def test_memory_grows_with_the_prompt_once():
    """P L + G T: eight times the completions do not cost eight prompts."""
    few, many = (estimate(SHAPES, WEIGHTS, Job(tokens=1000, patches=0, group=g, length=2)) for g in (2, 16))
    grown = many.fullest.parts["activations"] / few.fullest.parts["activations"]
    assert grown < 1.05
