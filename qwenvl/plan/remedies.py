"""What makes a run take less memory: each flag, what it costs, and how much it saves. The cheapest come first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from qwenvl.plan.estimate import Estimate, estimate
from qwenvl.plan.job import Job, Precision
from qwenvl.plan.seconds import layer_products
from qwenvl.plan.shapes import Shapes, Text
from qwenvl.plan.weights import Weights


@dataclass(frozen=True)
class Case:
    """What an estimate is made of."""

    shapes: Shapes
    weights: Weights
    job: Job

    def estimate(self) -> Estimate:
        """The memory of it."""
        return estimate(self.shapes, self.weights, self.job)

    def doing(self, **changes: object) -> Case:
        """The same with another job."""
        return replace(self, job=replace(self.job, **changes))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Remedy:
    """A change of flags.

    Attributes:
        settings: flags by name, with their values.
        costs: what it costs, for people.
        automatic: whether ``--auto_fit`` takes it: it changes nothing of what is learned.
        case: afterwards.
    """

    settings: dict[str, object]
    costs: str
    automatic: bool
    case: Case

    @property
    def flags(self) -> str:
        """As typed on a command line."""
        return " ".join(f"--{name} {value}" for name, value in self.settings.items())


FOUR_BITS = 0.52
"""Bytes of a weight in 4 bits with its scales (arXiv:2305.14314, section 3)."""

Maker = Callable[[Case], Iterator[Remedy]]
"""The remedies of one kind for a case."""


def remedies(case: Case, phases: Collection[str] | None = None) -> list[Remedy]:
    """Each remedy by itself that lowers the peak of a case, the cheapest first.

    Args:
        phases: names of those whose peak is looked at. None for all.
    """
    peak = case.estimate().peak_of(phases)
    return [each for make in TABLE for each in make(case) if each.case.estimate().peak_of(phases) < peak]


def best_remedies(case: Case, phases: Collection[str] | None = None, number: int = 3) -> list[Remedy]:
    """The cheapest remedies that save a tenth of the peak, and where these are too few those that save most."""
    found = remedies(case, phases)
    least = 0.1 * case.estimate().peak_of(phases)
    enough = [each for each in found if _saved(case, each, phases) >= least][:number]
    others = sorted((each for each in found if each not in enough), key=lambda each: -_saved(case, each, phases))
    return [*enough, *others[: number - len(enough)]]


def _saved(case: Case, remedy: Remedy, phases: Collection[str] | None) -> int:
    return case.estimate().peak_of(phases) - remedy.case.estimate().peak_of(phases)


def cheapest_way(case: Case, room: float, *, automatic: bool = False) -> tuple[list[Remedy], Case]:
    """Remedies one after the other, the cheapest first, until the case fits into ``room`` bytes or none is left.

    Those that turn out to be needless are left out again, the dearest first.

    Args:
        automatic: only those that ``--auto_fit`` takes.

    Returns:
        What was taken, and the case afterwards. Ask its estimate whether it fits.
    """
    chosen = list(TABLE)
    taken, after = _applied(case, chosen, room, automatic)
    if after.estimate().peak > room:
        return taken, after
    for make in reversed(TABLE):
        fewer = [each for each in chosen if each is not make]
        without, end = _applied(case, fewer, room, automatic)
        if end.estimate().peak <= room:
            chosen, taken, after = fewer, without, end
    return taken, after


def _applied(case: Case, makers: Sequence[Maker], room: float, automatic: bool) -> tuple[list[Remedy], Case]:
    """The remedies of some rows of the table, one after the other, until the case fits."""
    taken: list[Remedy] = []
    for make in makers:
        for each in make(case):
            if case.estimate().peak <= room:
                return taken, case
            if (each.automatic or not automatic) and each.case.estimate().peak < case.estimate().peak:
                taken, case = [*taken, each], each.case
    return taken, case


def _smaller_batches(case: Case) -> Iterator[Remedy]:
    job = case.job
    if job.prompts > 1:
        micro = job.micro_batches * job.prompts
        yield Remedy(
            {"per_device_train_batch_size": 1, "gradient_accumulation_steps": micro},
            "nothing: the gradient is the same",
            True,
            case.doing(prompts=1, micro_batches=micro),
        )


def _fewer_logits(case: Case) -> Iterator[Remedy]:
    if case.job.logit_bytes > 0.25e9:
        changed = case.doing(logit_bytes=int(0.25e9))
        yield Remedy({"logit_memory_gb": 0.25}, "a little time", True, changed)


def _fewer_drawn(case: Case) -> Iterator[Remedy]:
    job = case.job
    if job.drawn_together > 1:
        for number in {job.drawn_together // 2, 1} - {0}:
            budget = number * job.budgeted
            changed = case.doing(token_budget=budget)
            yield Remedy({"rollout_token_budget": budget}, "time, in sampling alone", True, changed)


def _checkpointing(case: Case) -> Iterator[Remedy]:
    if not case.job.checkpointing:
        changed = case.doing(checkpointing=True)
        yield Remedy({"gradient_checkpointing": True}, "about a fifth more time", True, changed)


def _reference_offload(case: Case) -> Iterator[Remedy]:
    job = case.job
    if job.reference in ("copy", "other") and not job.reference_offload and not job.on_host:
        yield Remedy({"ref_offload": True}, "time for copies", False, case.doing(reference_offload=True))


def _layer_by_layer(case: Case) -> Iterator[Remedy]:
    job = case.job
    if job.engine in ("zero3", "fsdp") and job.gathers and job.samples:
        costs = "time, in sampling alone: each layer is gathered for each token"
        yield Remedy({"ds3_gather_for_generation": False}, costs, False, case.doing(gathers=False))


def _optimizer(case: Case) -> Iterator[Remedy]:
    if not case.job.on_host and case.job.optimizer.startswith("adamw_torch"):
        changed = case.doing(optimizer="adamw_8bit")
        yield Remedy({"optim": "adamw_8bit"}, "needs bitsandbytes; coarser moments", False, changed)


def _fewer_frames(case: Case) -> Iterator[Remedy]:
    job, merged = case.job, case.shapes.vision.merged
    if job.patches > 4 * merged:
        half = job.patches // 2
        less = replace(job, patches=half, tokens=max(1, job.tokens - half // merged))
        yield Remedy(
            {"max_prompt_length": less.tokens, "fit_frames": True},
            "the longest prompts show half of their frames",
            False,
            replace(case, job=less),
        )


def _adapters(case: Case) -> Iterator[Remedy]:
    job, weights = case.job, case.weights
    if not job.rank and job.reference != "other":
        half = job.precision.products == 2
        trained = 64 * adapter_numbers(case.shapes.text)
        held, layer, outside, widest = (
            size * (2 if half else 4) // 4
            for size in (weights.held, weights.layer_held, weights.outside, weights.widest)
        )
        learns = trained // len(case.shapes.text.layers)
        adapted = Weights(
            held + 4 * trained, trained, 4 * trained, learns, 0, weights.tied, trained, layer, outside, widest
        )
        changed = replace(
            job,
            rank=64,
            mergers_learn=False,
            tower_learns=False,
            encoded=job.shared,
            reference="none" if job.reference == "none" else "adapter",
            reference_offload=False,
            precision=Precision(2, 2) if half else job.precision,
        )
        yield Remedy(
            {"lora_enable": True, "tune_mm_mlp": False},
            "what adapters cannot learn",
            False,
            Case(case.shapes, adapted, changed),
        )


def _four_bit(case: Case) -> Iterator[Remedy]:
    job, text = case.job, case.shapes.text
    if job.rank and not job.four_bit and not job.on_host and text.experts is None:
        packed = sum(layer_products(text, kind) for kind in text.layers)
        held = case.weights.held - round(packed * (job.precision.stream - FOUR_BITS))
        changed = replace(case, weights=replace(case.weights, held=held), job=replace(job, four_bit=True))
        yield Remedy({"load_in_4bit": True}, "needs bitsandbytes; slower, a little off the checkpoint", False, changed)


def _offload(case: Case) -> Iterator[Remedy]:
    job = case.job
    if job.checkpointing and not job.activation_offload and not job.on_host:
        yield Remedy({"activation_offload": True}, "time for copies", False, case.doing(activation_offload=True))


def _smaller_groups(case: Case) -> Iterator[Remedy]:
    if case.job.taught and case.job.group >= 2:
        fewer = case.job.group // 2
        yield Remedy({"max_per_prompt": fewer}, "fewer targets", False, case.doing(group=fewer))
    elif case.job.group >= 4:
        half = case.job.group // 2
        yield Remedy({"grpo_sample_size": half}, "noisier advantages", False, case.doing(group=half))


def _more_processes(case: Case) -> Iterator[Remedy]:
    if case.job.processes == 1 and not case.job.on_host:
        changed = case.doing(engine="zero3", processes=8)
        yield Remedy({"gpus": 8, "engine": "zero3"}, "eight GPUs", False, changed)


def adapter_numbers(text: Text) -> int:
    """Numbers of LoRA adapters of rank 1 on all linear layers of the language model: inputs and outputs of each."""
    hidden, total = text.hidden, 0
    for kind in text.layers:
        if kind == "linear_attention" and text.linear is not None:
            at = text.linear
            total += 5 * hidden + at.channels + 2 * at.values + 2 * at.heads
        else:
            total += 4 * hidden + (3 if text.gated else 2) * text.queries + 2 * text.keys
        if text.experts:
            width = text.experts.width
            total += text.experts.number * (2 * hidden + 3 * width) + 3 * (hidden + text.experts.shared)
        else:
            total += 3 * (hidden + text.intermediate)
    return total


TABLE: tuple[Maker, ...] = (
    _smaller_batches,
    _fewer_logits,
    _fewer_drawn,
    _checkpointing,
    _offload,
    _reference_offload,
    _layer_by_layer,
    _optimizer,
    _fewer_frames,
    _adapters,
    _four_bit,
    _smaller_groups,
    _more_processes,
)
"""The cheapest first: ``--auto_fit`` takes of the first four alone."""
