from qwenvl.data.chat import chat_messages
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


def test_what_only_looks_like_a_tag_is_text():
    (message,) = chat_messages(record(Message("user", "<Video> < video> <videos> <answer>")))
    assert message["content"] == [{"type": "text", "text": "<Video> < video> <videos> <answer>"}]


def test_an_empty_turn_has_no_parts():
    assert chat_messages(record(Message("user", "")))[0]["content"] == []
