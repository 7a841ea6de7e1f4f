"""Runs ``qwenvl data from-folder`` for tests, and reads what it has written."""

import pytest

from qwenvl.commands.data import main
from qwenvl.data.dataset import load_dataset

EAF = """<?xml version="1.0" encoding="UTF-8"?><ANNOTATION_DOCUMENT>
<HEADER TIME_UNITS="milliseconds"><MEDIA_DESCRIPTOR MEDIA_URL="file:///home/me/a.mp4" MIME_TYPE="video/mp4"/></HEADER>
<TIME_ORDER><TIME_SLOT TIME_SLOT_ID="t1" TIME_VALUE="0"/><TIME_SLOT TIME_SLOT_ID="t2" TIME_VALUE="1250"/>
<TIME_SLOT TIME_SLOT_ID="t3"/></TIME_ORDER>
<TIER TIER_ID="steps"><ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="a1" TIME_SLOT_REF1="t1" TIME_SLOT_REF2="t2">
<ANNOTATION_VALUE>insert fan</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION></TIER></ANNOTATION_DOCUMENT>"""


def run(capsys, *argv: str) -> str:
    assert main(["from-folder", "clips", *map(str, argv)]) == 0
    return capsys.readouterr().out


def refused(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["from-folder", "clips", *map(str, argv)])
    assert ended.value.code in (1, 2)
    return capsys.readouterr().err


def records(path: str = "clips/records.json"):
    return load_dataset(path).records


def solutions() -> list[str]:
    return [record.solution.removeprefix("<answer>").removesuffix("</answer>") for record in records()]
