"""The lines of an answer, from values by hand."""

from qwenvl.evaluate.ask.told import Answer, Seen, Told, as_json

CLIP = Seen("clips/17.mp4", (0.0, 0.53), (0, 8), (240, 320), (56, 84), 6)
IMAGE = Seen("part.png", (), (), (60, 90), (56, 84), 6)


def test_lines_and_values_are_the_same_facts():
    answers = (
        Answer("one\ntwo", 4, "length", {"format": 1.0, "accuracy": None, "total": 0.25}),
        Answer("", 1, "stop", {}),
    )
    sampled = "sampled at temperature 0.7"
    seen = (CLIP, IMAGE), "try.png", "Q?\n", (20, 12)
    told = Told("runs/sop", "org/base", "its run", *seen, sampled, "(1) pick", answers)
    assert "\n".join(told.lines()) == (
        "runs/sop, an adapter on org/base\n"
        "settings: its run\n"
        "\n"
        "17.mp4: 2 frames, 320 x 240 pixels, the model sees 84 x 56, 6 tokens\n"
        "  at 0.00 0.53 s\n"
        "part.png: an image, 90 x 60 pixels, the model sees 84 x 56, 6 tokens\n"
        "what it saw: try.png\n"
        "\n"
        "prompt: 20 tokens, 12 of them vision\n"
        "  Q?\n"
        "\n"
        "solution:\n"
        "  (1) pick\n"
        "\n"
        "answer 1 of 2 (sampled at temperature 0.7): 4 tokens, cut there by --generation_max_length\n"
        "  one\n"
        "  two\n"
        "  rewards: format 1.000, accuracy does not apply, total 0.250\n"
        "\n"
        "answer 2 of 2 (sampled at temperature 0.7): 1 token\n"
        "  "
    )
    assert as_json(told)["media"][0]["times"] == (0.0, 0.53) and as_json(told)["answers"][1]["text"] == ""
