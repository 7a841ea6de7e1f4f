import pytest

from qwenvl.yaml_text import read_yaml


def test_what_another_mapping_gives_may_be_changed_and_a_name_is_given_once():
    assert read_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}")["b"] == {"x": 3, "y": 2}
    with pytest.raises(ValueError, match=r"^b is given twice$"):
        read_yaml("a: {b: 1, b: 1}")


@pytest.mark.parametrize("text", ["a: {\nb: 1", "a: 'x\n\n\n", "\x00", "a: !!python/object:os.system x", "%a"])
def test_a_mistake_is_one_line(text):
    with pytest.raises(ValueError, match="not valid YAML: ") as error:
        read_yaml(text)
    assert "\n" not in str(error.value)
