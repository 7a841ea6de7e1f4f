"""The parser of all commands: options of the rooms beside arguments of a command's own."""

import pytest

from qwenvl.config.flags import FlagParser
from qwenvl.data.options import ReadingOptions
from qwenvl.rollout.options import GenerationOptions, SamplingOptions


@pytest.fixture
def parse():
    """Parses words with the flags of three option classes and of a command of its own."""
    parser = FlagParser(raises=True, add_help=False)
    parser.add_argument("dataset")
    parser.add_argument("--write-labels")
    parser.add_options(ReadingOptions, without={"format"})
    parser.add_options(GenerationOptions)
    parser.add_options(SamplingOptions)
    return lambda *argv: vars(parser.parse_args(argv))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--allow_outside_media"], {"allow_outside_media": True}),
        (["--allow-outside-media", "False"], {"allow_outside_media": False}),
        (["--ds3_gather_for_generation", "no"], {"ds3_gather_for_generation": False}),
        (["--no_ds3_gather_for_generation"], {"ds3_gather_for_generation": False}),
        (["--generation-top-p=-1e-1"], {"generation_top_p": -0.1}),
        (["--generation_top_p", "-1e-1"], {"generation_top_p": -0.1}),
        (["--allow_outside_media=yes"], {"allow_outside_media": True}),
        (["--write-labels", "new.csv"], {"write_labels": "new.csv"}),
        (["--stop_strings=a"], {"stop_strings": ["a"]}),
        (["--filter_groups=true"], {"filter_groups": True}),
        (["--filter_groups=accuracy(max_rounds=5)"], {"filter_groups": "accuracy(max_rounds=5)"}),
    ],
    ids=str,
)
def test_a_flag_reads_the_same_before_and_behind_other_words(parse, argv, expected):
    for words in ([*argv, "data.json"], ["data.json", *argv]):
        found = parse(*words)
        assert found["dataset"] == "data.json" and {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    "argv",
    [["--allow_outside_media=maybe"], ["--grpo_sample"], ["--format", "x"], ["--columns"]],
    ids=" ".join,
)
def test_unknown_flags_and_bad_or_missing_values_are_errors(parse, argv):
    with pytest.raises(ValueError):
        parse("data.json", *argv)


def test_a_misspelt_flag_is_matched_with_the_flags_of_its_command():
    whole = FlagParser(raises=True, add_help=False)
    commands = whole.add_subparsers(dest="command")
    commands.add_parser("check", raises=True).add_options(ReadingOptions)
    commands.add_parser("other", raises=True).add_options(GenerationOptions)
    with pytest.raises(ValueError, match=r"unknown flag --fromat; near: format$"):
        whole.parse_args(["check", "--fromat", "x"])
    with pytest.raises(ValueError, match="unknown flag --generation_top; near: generation_top_p"):
        whole.parse_args(["other", "--generation_top", "1"])
    with pytest.raises(ValueError, match="stray word more"):
        whole.parse_args(["check", "more"])
