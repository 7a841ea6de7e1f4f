import pytest

from qwenvl.yaml_text import read_yaml


def test_a_merged_mapping_may_be_overridden_and_a_repeated_name_is_an_error():
    assert read_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}")["b"] == {"x": 3, "y": 2}
    with pytest.raises(ValueError, match=r"^b is given twice$"):
        read_yaml("a: {b: 1, b: 1}")


WRONG_TAGS = ["a: !!float ''", "a: !!bool maybe", "{a: !!timestamp x}", "? [a]\n: b", "{[a]: b}"]
NO_YAML = ["a: {\nb: 1", "a: 'x\n\n\n", "\x00", "a: !!python/object:os.system x", "%a", "[" * 3000]


@pytest.mark.parametrize("text", [*NO_YAML, *WRONG_TAGS])
def test_a_mistake_in_yaml_is_reported_in_one_line(text):
    with pytest.raises(ValueError, match="not valid YAML: ") as error:
        read_yaml(text)
    assert "\n" not in str(error.value)


def test_a_text_that_stands_for_billions_of_values_is_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(ValueError, match="100,000 values"):
        read_yaml("\n".join(lines))
    with pytest.raises(ValueError, match="recursive"):
        read_yaml("a: &a [*a]")


def test_many_keys_are_read_and_half_a_character_is_refused():
    assert len(read_yaml("\n".join(f"k{n}: {n}" for n in range(3000)))) == 3000
    with pytest.raises(ValueError, match="surrogate"):
        read_yaml('system: "\\ud800"')
