"""What a notebook shows of a run."""

from qwenvl.inspection.notebook import show_group
from qwenvl.run_log.log import RunLog
from tests.run_log.runs import group


def test_completions_of_two_records_with_one_id_are_two_groups(tmp_path):
    """As of two data sets whose rows have no ids, or of a record that was drawn twice."""
    log = RunLog(tmp_path)
    log.log_rollouts(group([0.0, 0.5], where="a/records.json[0]"))
    log.log_rollouts(group([0.0, 0.25, 1.0], where="b/records.json[0]", solution="<answer>(3)</answer>"))
    shown = show_group(tmp_path, 1)
    assert shown.count("<tr>") == 1 + 3 and "(3)" in shown and "0.25" in shown and "0.50" not in shown
