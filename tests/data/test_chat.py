import pytest

from qwenvl.data.chat import chat_messages, check_template_arguments, opens_think, render_prompt, turn_end_id
from qwenvl.data.prompt_length import Ruler
from qwenvl.demo.tiny import make_processor
from qwenvl.types import Message, Record


def record(*messages):
    return Record("1", messages, "x", (), (), (), {}, "x.json[0]")


def test_text_is_split_at_its_tags_in_order_and_kept_to_the_letter():
    chat = chat_messages(record(Message("system", "Be brief."), Message("user", "<video>\nA <image><image> b ")))
    assert chat == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "user",
            "content": [
                {"type": "video"},
                {"type": "text", "text": "\nA "},
                {"type": "image"},
                {"type": "image"},
                {"type": "text", "text": " b "},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|im_start|>user\nWhich?<|im_end|>\n<|im_start|>assistant\n", False),
        ("<|im_start|>user\nWhich?<|im_end|>\n<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>user\nWhich?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nBegin with <think><|im_end|>\n<|im_start|>assistant\n", False),
        ("<|im_start|>user\nEnd with </think><|im_end|>\n<|im_start|>assistant\n<think>\nSo", True),
    ],
)
def test_a_prompt_that_ends_inside_a_think_block_is_recognized(prompt, opened):
    assert opens_think(prompt) is opened


def test_template_arguments_reach_the_template_and_unknown_ones_are_refused():
    processor = make_processor("qwen2_5_vl")
    processor.chat_template += "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"
    chat = [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}]
    plain = render_prompt(processor, chat, {})
    assert render_prompt(processor, chat, {"enable_thinking": False}) == plain + "</think>"
    check_template_arguments(processor, {"enable_thinking": False})
    with pytest.raises(ValueError, match="--chat_template_kwargs thinking has no effect"):
        check_template_arguments(processor, {"thinking": False})


def test_effective_arguments_are_the_variables_that_the_template_reads(tiny_pair):
    _, processor = tiny_pair()
    effective = lambda given: Ruler(processor, (1, 1), (1, 1), given).effective_arguments
    assert effective({}) == {}
    processor.chat_template = (
        "{%- if effort is not defined %}{%- set effort = 'medium' %}{%- endif %}{{ effort }}"
        + processor.chat_template
        + "{%- set count = namespace(value=0) %}{% if ids and not thinking %}{{ raise_exception('no') }}{% endif -%}"
    )
    assert effective({}) == {"effort": "medium", "ids": None, "thinking": None}
    given = {"effort": "low", "thinking": False, "ids": []}
    assert effective(given | {"tools": []}) == given


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_end_of_a_turn_is_the_token_that_the_template_writes(family):
    processor = make_processor(family)
    assert turn_end_id(processor) == processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
    own = processor.chat_template
    processor.chat_template = own.replace("<|im_end|>", "<|endoftext|>")
    assert turn_end_id(processor) == processor.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    processor.chat_template = own.replace("<|im_end|>", "\nEnd.")
    assert turn_end_id(processor) is None
    processor.chat_template = "{% for message in messages if message['role'] == 'user' %}a question{% endfor %}"
    assert turn_end_id(processor) is None
