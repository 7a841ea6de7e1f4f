import pytest

from qwenvl.yaml_text import read_yaml


def test_a_name_given_twice_is_refused():
    with pytest.raises(ValueError, match=r"^steps is given twice$"):
        read_yaml("steps: 1\nother: 2\nsteps: 3")
    with pytest.raises(ValueError, match=r"^b is given twice$"):
        read_yaml("a: {b: 1, b: 1}")


def test_what_another_mapping_gives_may_be_changed():
    assert read_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}")["b"] == {"x": 3, "y": 2}


@pytest.mark.parametrize(
    "text", ["a: {\nb: 1", "a: 'x\n\n\n", "a: 1\n b: 2", "\x00", "a: !!python/object:os.system x", "%a"]
)
def test_a_mistake_is_one_line(text):
    with pytest.raises(ValueError, match="not valid YAML: ") as error:
        read_yaml(text)
    assert "\n" not in str(error.value)


def test_the_place_of_a_mistake():
    with pytest.raises(ValueError, match="line 2, column 1"):
        read_yaml("a: [1,\n}")
