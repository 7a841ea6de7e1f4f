"""A user's own files: their hashes, and the place where their code raised an error."""

from pathlib import Path
from types import SimpleNamespace

import qwenvl
from qwenvl.own_code import code_hashes, raised_at


def test_each_file_of_one_name_counts(tmp_path):
    """Two folders may have a file of rewards each, of the same name."""
    files = [tmp_path / folder / "r.py" for folder in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("x = 1\n")
    settings = SimpleNamespace(reward_funcs=[f"{files[0]}:f", f"{files[0]}:g", f"{files[1]}:f"])
    seen = [code_hashes(settings)]
    for file in files:
        file.write_text("x = 2\n")
        seen.append(code_hashes(settings))
    assert [list(each) for each in seen] == [["r.py"]] * 3
    assert len({each["r.py"] for each in seen}) == 3


def test_code_beside_the_package_is_the_users_own():
    """A folder whose path begins like that of the package is none of its."""
    package = Path(qwenvl.__file__).parent
    for file, is_own in ((f"{package}_rewards/mine.py", True), (package / "option.py", False)):
        try:
            exec(compile("1 / 0", file, "exec"), {})
        except ZeroDivisionError as error:
            error.__traceback__ = error.__traceback__.tb_next  # this test is a user's own code, too
            place = raised_at(error)
        assert place == (" (mine.py, line 1)" if is_own else ""), file
