"""What lowers the peak, in which order, and how little of it suffices."""

from dataclasses import replace

from qwenvl.plan.remedies import TABLE, Case, _applied, adapter_numbers, cheapest_way, remedies
from qwenvl.plan.sizes import Job
from tests.plan.test_memory import SHAPES, TEXT, WEIGHTS

JOB = Job(tokens=1000, patches=4000, prompts=2, group=4, length=50, logit_bytes=10**9)
CASE = Case(SHAPES, WEIGHTS, JOB)


def names(found) -> list[str]:
    return [name for each in found for name in each.settings]


def test_the_cheapest_come_first_and_each_lowers_the_peak():
    found = remedies(CASE)
    peak = CASE.estimate().peak
    assert all(each.case.estimate().peak < peak for each in found)
    assert names(found)[:2] == ["per_device_train_batch_size", "gradient_accumulation_steps"]
    assert [each.automatic for each in found] == sorted((each.automatic for each in found), reverse=True)


def test_a_warm_up_has_no_group_to_make_smaller():
    taught = replace(JOB, group=4, length=2000, samples=False, warmup=True, reference="none")
    found = remedies(Case(SHAPES, WEIGHTS, taught))
    assert "grpo_sample_size" not in names(found) and "rollout_token_budget" not in names(found)
    (fewer,) = [each for each in found if "max_per_prompt" in each.settings]
    assert fewer.flags == "--max_per_prompt 2" and fewer.case.job.group == 2
    alone = remedies(Case(SHAPES, WEIGHTS, replace(taught, group=1)))
    assert "max_per_prompt" not in names(alone)


def test_what_is_taken_fits_and_nothing_of_it_is_needless():
    room = remedies(CASE)[0].case.estimate().peak * 0.5
    taken, after = cheapest_way(CASE, room)
    assert after.estimate().peak <= room
    assert "lora_enable" not in names(taken)
    used = [make for make in TABLE if {*names(make(CASE))} & {*names(taken)}]
    for make in used:  # without it the others do not suffice
        others = [other for other in used if other is not make]
        assert _applied(CASE, others, room, False)[1].estimate().peak > room


def test_only_what_changes_nothing_is_taken_where_that_is_asked():
    room = cheapest_way(CASE, 1.0, automatic=True)[1].estimate().peak
    taken, after = cheapest_way(CASE, room, automatic=True)
    assert taken and all(each.automatic for each in taken) and after.estimate().peak <= room
    assert cheapest_way(CASE, CASE.estimate().peak) == ([], CASE)


def test_a_host_has_no_remedies_of_a_gpu():
    on_host = replace(CASE, job=replace(JOB, on_host=True))
    assert not {"gpus", "engine"} & set(names(remedies(on_host)))


def test_adapters_are_counted():
    """Inputs and outputs of q, k, v and o, and of gate, up and down, in both layers."""
    assert adapter_numbers(TEXT) == 2 * ((8 + 8) + (8 + 4) + (8 + 4) + (8 + 8) + 2 * (8 + 16) + (16 + 8))
