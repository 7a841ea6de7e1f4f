import pytest

from qwenvl.data.options import PromptOptions


def test_template_arguments_are_read_from_json_or_a_mapping():
    assert PromptOptions().template_arguments == {}
    assert PromptOptions(chat_template_kwargs='{"enable_thinking": false}').template_arguments == {
        "enable_thinking": False
    }
    assert PromptOptions(chat_template_kwargs={"budget": 3}).template_arguments == {"budget": 3}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("enable_thinking=false", r"must be a JSON mapping .*got enable_thinking=false"),
        ("[1]", r"must be a JSON mapping .*got \[1\]"),
        ({"messages": []}, "messages is what a prompt is made with"),
        (3, "--chat_template_kwargs must be a mapping or a string"),
    ],
)
def test_template_arguments_that_are_no_mapping_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        PromptOptions(chat_template_kwargs=given)
