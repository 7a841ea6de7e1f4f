import pytest

from qwenvl.yaml_text import read_yaml


def test_a_merged_mapping_may_be_overridden_and_a_repeated_name_is_an_error():
    assert read_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}")["b"] == {"x": 3, "y": 2}
    with pytest.raises(ValueError, match=r"^b is given twice$"):
        read_yaml("a: {b: 1, b: 1}")


@pytest.mark.parametrize("text", ["a: {\nb: 1", "a: 'x\n\n\n", "\x00", "a: !!python/object:os.system x", "%a"])
def test_a_mistake_in_yaml_is_reported_in_one_line(text):
    with pytest.raises(ValueError, match="not valid YAML: ") as error:
        read_yaml(text)
    assert "\n" not in str(error.value)
