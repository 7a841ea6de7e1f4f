"""Changes of flags that make a step take less memory: each with its costs and its saving, the cheapest first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from qwenvl.plan.memory import Estimate, amount, estimate
from qwenvl.plan.sizes import Job, ModelWeights, Precision, Shapes, Text


@dataclass(frozen=True)
class Case:
    """The input of an estimate: a model and a step."""

    shapes: Shapes
    weights: ModelWeights
    job: Job

    def estimate(self) -> Estimate:
        """The memory of the step."""
        return estimate(self.shapes, self.weights, self.job)

    def doing(self, **changes: object) -> Case:
        """The case with other settings of the step."""
        return replace(self, job=replace(self.job, **changes))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Remedy:
    """A change of flags."""

    settings: dict[str, object]  # flags by name, with their values
    costs: str  # for people
    case: Case  # afterwards
    automatic: bool = False  # nothing of what is learned changes, so --auto_fit may take it

    @property
    def flags(self) -> str:
        """The flags as typed on a command line."""
        return " ".join(f"--{name} {value}" for name, value in self.settings.items())


def remedies(case: Case, phases: Collection[str] | None = None) -> list[Remedy]:
    """Each remedy that alone lowers the peak of ``phases`` (None: of all), the cheapest first."""
    peak = case.estimate().peak_of(phases)
    return [each for make in TABLE for each in make(case) if each.case.estimate().peak_of(phases) < peak]


def best_remedies(case: Case, phases: Collection[str] | None = None, number: int = 3) -> list[Remedy]:
    """The cheapest remedies that save a tenth of the peak, then those that save most."""
    peak = case.estimate().peak_of(phases)

    def order(each: Remedy) -> tuple[bool, float]:
        after = each.case.estimate().peak_of(phases)
        return (False, 0.0) if peak - after >= 0.1 * peak else (True, after)

    return sorted(remedies(case, phases), key=order)[:number]


def cheapest_way(case: Case, room: float, *, automatic: bool = False) -> tuple[list[Remedy], Case]:
    """Remedies one after the other, the cheapest first, until the case fits into ``room`` bytes or none remains.

    Needless ones are left out again, the dearest first.

    Args:
        automatic: only those that ``--auto_fit`` may take.

    Returns:
        The remedies, and the case with all of them, which may not fit either.
    """
    rows = list(TABLE)
    taken, after = _applied(case, rows, room, automatic)
    for make in reversed(TABLE) if after.estimate().peak <= room else ():
        fewer = [each for each in rows if each is not make]
        without, end = _applied(case, fewer, room, automatic)
        if end.estimate().peak <= room:
            rows, taken, after = fewer, without, end
    return taken, after


def _applied(case: Case, rows: Sequence[Maker], room: float, automatic: bool) -> tuple[list[Remedy], Case]:
    taken: list[Remedy] = []
    for make in rows:
        for each in make(case):
            if (peak := case.estimate().peak) <= room:
                return taken, case
            if (each.automatic or not automatic) and each.case.estimate().peak < peak:
                taken, case = [*taken, each], each.case
    return taken, case


def remedy_lines(found: Sequence[Remedy], peak: int, room: float) -> Iterator[str]:
    """Each remedy alone: what it saves, whether it suffices, what it costs."""
    width = max((len(each.flags) for each in found), default=0)
    for each in found:
        after = each.case.estimate().peak
        enough = "then it fits; " if after <= room < peak else ""
        yield f"{each.flags:{width}}  saves {amount(peak - after):>8}; {enough}costs {each.costs}"


def _smaller_batches(case: Case) -> Iterator[Remedy]:
    job = case.job
    if job.prompts > 1:
        micro = job.micro_batches * job.prompts
        settings: dict[str, object] = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": micro}
        yield Remedy(settings, "nothing: the gradient is the same", case.doing(prompts=1, micro_batches=micro), True)


def _fewer_logits(case: Case) -> Iterator[Remedy]:
    if case.job.logit_bytes > 0.25e9:
        yield Remedy({"logit_memory_gb": 0.25}, "a little time", case.doing(logit_bytes=int(0.25e9)), True)


def _smaller_budget(case: Case) -> Iterator[Remedy]:
    together = case.job.sampled_together
    for number in {together // 2, 1} if together > 1 else ():
        budget = number * case.job.budgeted
        changed = case.doing(token_budget=budget)
        yield Remedy({"rollout_token_budget": budget}, "time, in sampling alone", changed, True)


def _checkpointing(case: Case) -> Iterator[Remedy]:
    if not case.job.checkpointing:
        changed = case.doing(checkpointing=True)
        yield Remedy({"gradient_checkpointing": True}, "about a fifth more time", changed, True)


def _fewer_frames(case: Case) -> Iterator[Remedy]:
    job, merged = case.job, case.shapes.vision.merged
    if job.patches > 4 * merged:
        half = job.patches // 2
        less = case.doing(patches=half, tokens=max(1, job.tokens - half // merged))
        settings: dict[str, object] = {"max_prompt_length": less.job.tokens, "fit_frames": True}
        yield Remedy(settings, "the longest prompts show half of their frames", less)


def _adapters(case: Case) -> Iterator[Remedy]:
    job, weights = case.job, case.weights
    if job.rank or job.reference == "other":
        return
    half = job.precision.products == 2
    sizes = (weights.held, weights.layer_held, weights.outside, weights.widest)
    held, layer, outside, widest = (size * (2 if half else 4) // 4 for size in sizes)
    trained = 64 * adapter_numbers(case.shapes.text)
    adapted = ModelWeights(
        held=held + 4 * trained,
        trained=trained,
        trained_held=4 * trained,
        layer=trained // len(case.shapes.text.layers),
        head=0,
        rounded=trained,
        layer_held=layer,
        outside=outside,
        widest=widest,
    )
    changed = replace(case, weights=adapted).doing(
        rank=64,
        mergers_learn=False,
        tower_learns=False,
        encoded=job.shared,
        reference="none" if job.reference == "none" else "adapter",
        precision=Precision(2, 2) if half else job.precision,
    )
    yield Remedy({"lora_enable": True, "tune_mm_mlp": False}, "what adapters cannot learn", changed)


def _smaller_groups(case: Case) -> Iterator[Remedy]:
    half = case.job.group // 2
    if case.job.warmup and half:
        yield Remedy({"max_per_prompt": half}, "fewer targets", case.doing(group=half))
    elif half >= 2:
        yield Remedy({"grpo_sample_size": half}, "noisier advantages", case.doing(group=half))


def _more_processes(case: Case) -> Iterator[Remedy]:
    if case.job.processes == 1 and not case.job.on_host:
        yield Remedy({"gpus": 8, "engine": "zero3"}, "eight GPUs", case.doing(engine="zero3", processes=8))


def adapter_numbers(text: Text) -> int:
    """Numbers of LoRA adapters of rank 1 on all linear layers of the language model: inputs and outputs of each."""
    hidden, at, total = text.hidden, text.linear, 0
    for kind in text.layers:
        if kind == "linear_attention" and at is not None:
            total += 5 * hidden + at.channels + 2 * at.values + 2 * at.heads
        else:
            total += 4 * hidden + (3 if text.gated else 2) * text.queries + 2 * text.keys
        if mixed := text.experts:
            total += mixed.number * (2 * hidden + 3 * mixed.width) + 3 * (hidden + mixed.shared)
        else:
            total += 3 * (hidden + text.intermediate)
    return total


Maker = Callable[[Case], Iterator[Remedy]]
TABLE: tuple[Maker, ...] = (
    _smaller_batches,
    _fewer_logits,
    _smaller_budget,
    _checkpointing,
    _fewer_frames,
    _adapters,
    _smaller_groups,
    _more_processes,
)
"""The cheapest first. ``--auto_fit`` may take the first four. docs/training.md has more flags that take less memory."""
