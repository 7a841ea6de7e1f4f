"""Learns how the prompts of a run frame a question, so that a question after training looks like those of training.

Training takes a prompt as its record has it. A question on a command line or to a server is only a text and its media.
The white space between the two, the request for a form of the answer and the system turn are learned from the records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qwenvl.data.errors import RecordError
from qwenvl.data.records.forms import MEDIA_TAG
from qwenvl.data.records.parse import ReadOptions, Row, adds_request, read_row
from qwenvl.data.records.presets import OURS, answer_request, our_row
from qwenvl.rewards.kinds import CHOICE, WORDS
from qwenvl.types import Message, Record

LOOKED_AT = 200  # records, spread evenly over the data
_IN_FRONT = re.compile(r"(?:<(?:video|image)>\s*)+")
_LETTERED_LINES = re.compile(r"^\(?A[).:] .*\n\(?B[).:] ", re.MULTILINE)
_BY_QUESTION = "question-answer"  # the preset that takes a question with its options and nothing else


@dataclass(frozen=True)
class Framing:
    """The texts around the questions of a run, without the template and the system turn that flags name.

    Attributes:
        between: the white space between two media in front of a question, such as "" or a new line.
        before_text: the white space between the last medium and the question.
        kinds: kinds of answers that questions request in the words of a preset, the most frequent one first. Empty
            where most questions request nothing in these words.
        system: the text of the system turn that all records have. None: they have none, or different ones.
    """

    between: str = ""
    before_text: str = ""
    kinds: tuple[str, ...] = ()
    system: str | None = None

    @classmethod
    def of(cls, records: Sequence[Record], reading: ReadOptions) -> Framing:
        """Learn the framing that most records have.

        Args:
            reading: how the records were read. Texts that it put around prompts are not part of the framing.
        """
        between: Counter[str] = Counter()
        before_text: Counter[str] = Counter()
        kinds: Counter[str | None] = Counter()
        systems: Counter[str | None] = Counter()
        questions = 0
        for record in _spread(records):
            record = unframed(record, reading)
            first = next((message.text for message in record.messages if message.role == "user"), "")
            spaces = _spaces_behind_media(first)
            between.update(spaces[:-1])
            before_text.update(spaces[-1:])
            kinds[_requested(record)] += 1
            opening = record.messages[0]
            systems[opening.text if opening.role == "system" else None] += 1
            questions += 1
        behind = _most_frequent(before_text, "")
        most_request_nothing = 2 * kinds[None] > questions
        requested = [kind for kind, _ in kinds.most_common() if kind is not None]
        return cls(
            # A run whose prompts have one medium each says nothing of two: they are taken to stand alike.
            between=_most_frequent(between, behind),
            before_text=behind,
            kinds=() if most_request_nothing else tuple(requested),
            system=next(iter(systems)) if len(systems) == 1 else None,
        )

    def with_format(self, name: str | None) -> Framing:
        """The framing with the preset that ``--format`` names. None leaves it as it is."""
        if name is None:
            return self
        return replace(self, kinds=() if name == OURS else self.kinds or (WORDS,))

    def in_words(self) -> str:
        """The addition to questions, for the line that names the settings. Empty where there is none."""
        if not self.kinds:
            return ""
        return ", questions end as theirs, which request an answer (--format qwenvl leaves that out)"

    def spaces(self, media: int) -> list[str]:
        """The white space behind each of so many media in front of a question."""
        if media == 0:
            return []
        return [self.between] * (media - 1) + [self.before_text]


def _spread(records: Sequence[Record]) -> Iterator[Record]:
    """At most ``LOOKED_AT`` records, spread evenly. Rows that cannot be read are reported where they are used."""
    count = min(len(records), LOOKED_AT)
    for number in range(count):
        try:
            record = records[number * len(records) // count]
        except RecordError:
            continue
        if not record.problem:
            yield record


def _spaces_behind_media(text: str) -> list[str]:
    """The white space behind each of the media tags that a text begins with.

    Empty where it begins with no tag, and where nothing stands behind the tags: that says nothing about a question.

    Example:
        >>> _spaces_behind_media("<video><image>\\nWhich?")
        ['', '\\n']
    """
    found = _IN_FRONT.match(text)
    if found is None or found.end() == len(text):
        return []
    return re.findall(r">(\s*)", found[0])


def _most_frequent(counts: Counter[str], default: str) -> str:
    """The text that was counted most often."""
    if not counts:
        return default
    ((text, _),) = counts.most_common(1)
    return text


def _requested(record: Record) -> str | None:
    """The kind of answer that the prompt of a record requests in the words of a preset, None without such words."""
    kind = record.fields.get("problem_type")
    if isinstance(kind, str) and record.messages[-1].text.endswith(answer_request(kind)):
        return kind
    return None


def unframed(record: Record, options: ReadOptions) -> Record:
    """The record without the template and the system turn that the options put around its prompt."""
    messages = list(record.messages)
    if options.prompt_template is not None:
        messages[-1] = Message("user", _without_template(messages[-1].text, options.prompt_template))
    if options.system is not None:
        messages = [message for message in messages if message.role != "system"]
    return replace(record, messages=tuple(messages))


def _without_template(text: str, template: str) -> str:
    """The prompt that a template was filled with, which may have it in several places."""
    before, *further = template.split("{prompt}")
    length = (len(text) - len(before) - sum(map(len, further))) // len(further)
    return text[len(before) : len(before) + length]


# ---- questions


def asked_record(
    question: str,
    media: Iterable[tuple[str, str]],
    framing: Framing,
    reading: ReadOptions,
    *,
    solution: str | None = None,
    options: Sequence[str] = (),
) -> Record:
    """A single question as a record of training.

    Args:
        media: kind, ``video`` or ``image``, and path of each. They come before the question unless it has tags.
        solution: None leaves it empty.
        options: the texts that the answer is one of. Empty for an open question.

    Raises:
        ValueError: tags and media do not match, or the solution is none of the options.
    """
    media = list(media)
    row = _asked_row(question, framing, reading, solution, options)
    if not MEDIA_TAG.search(row["prompt"]):
        front = ""
        for (kind, _), space in zip(media, framing.spaces(len(media)), strict=True):
            front += f"<{kind}>{space}"
        row["prompt"] = front + row["prompt"]
    row["videos"] = [path for kind, path in media if kind == "video"]
    row["images"] = [path for kind, path in media if kind == "image"]
    if framing.system is not None:
        row["system"] = framing.system
    as_it_is = replace(reading, format=OURS, columns={}, allow_outside_media=True)
    record = read_row(Row("the question", "question", row), Path.cwd(), as_it_is)
    return record if solution is not None else replace(record, solution="")


def _asked_row(
    question: str, framing: Framing, reading: ReadOptions, solution: str | None, options: Sequence[str]
) -> dict[str, Any]:
    """A row of our prompt form without its media, made by the function that makes the rows of training."""
    if not framing.kinds and not options:
        return {"prompt": question} if solution is None else {"prompt": question, "solution": solution}
    kind = CHOICE if options else _kind_of_question(question, framing.kinds, solution)
    # A preset's row has an answer. Here it is taken off again, so that any will do.
    answer = solution if solution is not None else "A"
    given: dict[str, Any] = {"question": question, "answer": answer, "problem_type": kind}
    if options:
        given["options"] = list(options)
    made = our_row(_BY_QUESTION, given, "the question", form=bool(framing.kinds) and adds_request(reading))
    return {key: made.row[key] for key in ("prompt", "solution", "problem_type")}


def _kind_of_question(question: str, kinds: Sequence[str], solution: str | None) -> str:
    """The kind of answer to request: by the solution or lettered options, else the most frequent kind."""
    if solution is not None:
        by_solution = our_row(_BY_QUESTION, {"question": question, "answer": solution}, "the question", form=False)
        if by_solution.row["problem_type"] in kinds:
            return by_solution.row["problem_type"]
    if CHOICE in kinds and _LETTERED_LINES.search(question):
        return CHOICE
    without_options = [kind for kind in kinds if kind != CHOICE]
    return (without_options or list(kinds))[0]


def request_behind(text: str, framing: Framing, reading: ReadOptions) -> str:
    """The request for an answer that the framing puts behind a user's last turn, or an empty text."""
    if not framing.kinds or not adds_request(reading) or "<answer>" in text:
        return ""
    return answer_request(_kind_of_question(text, framing.kinds, None))


def framed_question(question: str, framing: Framing) -> str:
    """The text behind one clip: a question as the prompts of training have it."""
    return framing.spaces(1)[0] + question + request_behind(question, framing, ReadOptions())
