"""A request of OpenAI's chat API: from its body to the parameters and the record that the model is asked with."""

from __future__ import annotations

import base64
import json
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from itertools import chain, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from qwenvl.data.errors import BadMediaError, RecordError
from qwenvl.data.media.source import outside_of
from qwenvl.data.records.framing import request_behind
from qwenvl.data.records.parse import Row, read_row
from qwenvl.data.records.presets import OURS
from qwenvl.evaluate.settings import Asking
from qwenvl.failure import beginning, printable
from qwenvl.files import is_address
from qwenvl.types import Record, SamplingParams
from qwenvl.use.fetch import BusyError, OnBytes, fetch
from qwenvl.use.options import ChatOptions, ServeOptions

MEDIA = {"video_url": "video", "image_url": "image"}
WITHOUT_EFFECT = {"messages", "user", "metadata", "store", "service_tier", "stream_options", "return_token_ids"}
OF_A_TURN = {"role", "content", "name"}  # templates of Qwen have no names of speakers
OF_A_PART = {"type", "cache_control", "uuid"}  # and what it holds; two of them are for caches of servers
NEUTRAL: tuple[Any, ...] = (None, "", [], {}, "none", "auto", {"type": "text"})  # values that ask for nothing
# Parameters of OpenAI and vLLM for which 0 or false asks for nothing. For others it does: top_k 0 is every token.
ZERO_IS_NEUTRAL = {
    "echo",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "min_p",
    "min_tokens",
    "parallel_tool_calls",
    "presence_penalty",
    "top_logprobs",
    "use_beam_search",
}
TURN_SETTINGS = "a turn has role and content; calls of tools stand in the content, as this server writes them"
MEDIA_SETTINGS = (
    "a part holds its text or its medium; frames and pixels are as in training, or set by flags of qwenvl serve, such "
    "as --video_max_frames"
)
FETCH_SECONDS = 60.0
LONGEST_MESSAGE = 2000  # characters of an error: it may quote what the client sent
MOST_VALUES = 200_000  # in the JSON of a request: each takes some 100 bytes of memory
MOST_DIGITS = 100  # of a whole number in it: the largest that means something, a seed, has 19
MOST_PARTS = 2_000  # turns, and parts in them
LONGEST_URL = 8_192  # characters of a path or an address; links in a path of millions of folders take hours to resolve
LONGEST_ROLE = 20  # characters; it is kept while a request waits
BYTES_PER_TOKEN = 8  # no text that means something has more, and counting its tokens would take long
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # half of a character, as JSON escapes it


class ApiError(Exception):
    """An answer in OpenAI's error form."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        message = beginning(printable(message), LONGEST_MESSAGE)
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": code}}


class Patience:
    """The time of a request: it is worked on until its seconds are over, or until nobody waits for the answer.

    Args:
        seconds: in all, from the first byte of its body to the end of its answer.
        client: the address that it comes from. Clients take turns.
    """

    def __init__(self, seconds: float, client: str = "") -> None:
        self.client = client
        self._seconds = seconds
        self._until = time.monotonic() + seconds  # until it ends
        self._ended: ApiError | None = None
        self._at_end: list[Callable[[], object]] = []

    @property
    def gone(self) -> bool:
        """Whether nobody waits any more."""
        return self._ended is not None

    def end(self, reason: ApiError) -> None:
        """Nobody waits any more. The first reason counts."""
        if self._ended is None:
            self._ended = reason
            self._until = min(self._until, time.monotonic())
            for call in self._at_end:
                call()

    def at_end(self, call: Callable[[], object]) -> None:
        """Have something called when nobody waits any more, in another thread."""
        self._at_end.append(call)
        if self.gone:
            call()

    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return 0.0 if self.gone else max(0.0, self._until - time.monotonic())

    def over_for(self) -> float:
        """Seconds since nobody waits any more, 0 while somebody does."""
        return max(0.0, time.monotonic() - self._until)

    def check(self) -> None:
        """Raise where the request is not worked on any more.

        Raises:
            ApiError: its seconds are over, or nobody waits for the answer.
        """
        if self._ended is not None:
            raise self._ended
        if not self.left():
            raise ApiError(504, f"no answer within {self._seconds:g} s (--max_seconds)")


@dataclass(frozen=True)
class Parsed:
    """A request as its body says it.

    Attributes:
        messages: a list of objects with role and content. Empty once a record is made of them, so that a request that
            waits holds no media.
        text_bytes: of all texts, in UTF-8. A smiley has four, and often as many tokens.
        has_media: whether reading it decodes anything.
        has_addresses: whether reading it waits for other machines.
    """

    messages: Sequence[Mapping[str, Any]]
    options: ChatOptions
    text_bytes: int
    has_media: bool
    has_addresses: bool

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Any]], options: ChatOptions) -> Parsed:
        """The request of some messages."""
        parts = list(chain.from_iterable(map(_parts, messages)))
        texts = [message.get("content") for message in messages]
        texts += [part.get("text") for part in parts if isinstance(part, dict)]
        return cls(
            messages=messages,
            options=options,
            text_bytes=sum(len(text.encode()) for text in texts if isinstance(text, str)),
            has_media=any(_kind(part) in MEDIA for part in parts),
            has_addresses=any(is_address(str(_url(part))) for part in parts),
        )


def _parts(message: Mapping[str, Any]) -> list[Any]:
    """The typed parts of a turn. A turn of text has none."""
    content = message.get("content")
    return content if isinstance(content, list) else []


def _kind(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None


def _url(part: Any) -> Any:
    """The address of a part's medium, in both forms that clients write."""
    kind = _kind(part)
    medium = part.get(kind) if kind in MEDIA else None
    return medium.get("url") if isinstance(medium, dict) else medium


def parse_body(body: bytes, model: str, trained: SamplingParams) -> Parsed:
    """The messages and the parameters of a request.

    Args:
        model: the name of what is served.
        trained: the settings of training, which bound those of a request.

    Raises:
        ApiError: the body is no request, or asks for what is not offered.
    """
    # Before it is parsed: a body of 64 MB that is all brackets would become gigabytes.
    if sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise ApiError(400, f"expected a JSON object of at most {MOST_VALUES:,} values")
    try:
        # Of bytes Python would guess the encoding, and take lone surrogates.
        found = json.loads(
            body.decode(), parse_constant=_no_number, parse_int=_short_number, object_pairs_hook=_each_once
        )
        if _SURROGATE.search(body):
            json.dumps(found, ensure_ascii=False).encode()
        messages = found["messages"]
        read = {each.name for each in fields(ChatOptions)} & found.keys()
        for name in found.keys() - read - WITHOUT_EFFECT:
            value = found[name]
            asks_for_nothing = value in NEUTRAL or (name in ZERO_IS_NEUTRAL and value == 0)
            if not asks_for_nothing:
                raise _not_offered(beginning(name))
        options = ChatOptions(**{name: found[name] for name in read if found[name] is not None})
        options.params(trained)
    except UnicodeError:
        raise ApiError(400, "expected JSON in UTF-8 without halves of characters (lone surrogates)") from None
    except (TypeError, KeyError, AttributeError, RecursionError):
        raise ApiError(400, "expected a JSON object with messages") from None
    except ValueError as error:
        raise ApiError(400, str(error).removeprefix("--").replace("\n--", "\n")) from None
    if options.model not in (None, model):
        shown = beginning(options.model)
        raise ApiError(404, f"model: {shown!r} is not served; there is {model!r}", "model_not_found")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise ApiError(400, "messages: expected a list of objects with role and content")
    if len(messages) + sum(len(_parts(each)) for each in messages) > MOST_PARTS:
        raise ApiError(400, f"messages: expected at most {MOST_PARTS:,} turns and parts")
    for number, message in enumerate(messages):
        _check_turn(message, f"messages[{number}]")
    return Parsed.of(list(map(_needed, messages)), options)


def _needed(message: Mapping[str, Any]) -> dict[str, Any]:
    """A turn without what is not read of it: a request waits, and what it holds may be large."""
    content = message.get("content")
    if isinstance(content, list):
        content = [_needed_part(part) for part in content]
    return {"role": message.get("role"), "content": content}


def _needed_part(part: Any) -> Any:
    kind = _kind(part)
    if kind is None or kind not in part:
        return part  # is refused when it is read
    return {"type": kind, kind: part[kind]}


def _check_turn(message: Mapping[str, Any], place: str) -> None:
    """Raise ApiError for a setting of a turn, or of a part of it, that the answer would not follow."""
    _check_keys(message, OF_A_TURN, place, TURN_SETTINGS)
    role = message.get("role")
    if role is not None and (not isinstance(role, str) or len(role) > LONGEST_ROLE):
        raise ApiError(400, f"{place}.role: expected system, user or assistant")
    for number, part in enumerate(_parts(message)):
        kind = _kind(part)
        if kind != "text" and kind not in MEDIA:
            continue  # is refused when it is read
        at = f"{place}.content[{number}]"
        _check_keys(part, {*OF_A_PART, kind}, at, MEDIA_SETTINGS)
        medium = part.get(kind)
        if isinstance(medium, dict):
            _check_keys(medium, {"url"}, f"{at}.{kind}", MEDIA_SETTINGS)


def _check_keys(found: Mapping[str, Any], known: Set[str], place: str, instead: str) -> None:
    for name, value in found.items():
        if name not in known and value not in NEUTRAL:
            raise _not_offered(f"{place}.{beginning(name)}", instead)


def _not_offered(name: str, instead: str | None = None) -> ApiError:
    reason = "" if instead is None else f": {instead}"
    message = f"{name}: not offered by this server; leave it out{reason}"
    return ApiError(400, message, "unsupported_parameter")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. A client that writes a key twice means one value, and nobody knows which."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    counts = Counter(name for name, _ in pairs)
    [(name, count)] = counts.most_common(1)
    raise ValueError(f"expected JSON with each key once in an object, got {beginning(repr(name))} {count} times")


def _short_number(digits: str) -> int:
    """A whole number. Long ones take time by the square of their digits, in which no other thread runs."""
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"expected whole numbers of at most {MOST_DIGITS} digits")
    return int(digits)


def _no_number(word: str) -> Any:
    raise ValueError(f"expected JSON, which has no {word}")


class RequestReader:
    """Makes records of requests. Their media are files below the media root, or files of a folder that ends with them.

    Args:
        asking: how prompts are read and framed.
        positions: of the model, in tokens.
    """

    def __init__(self, limits: ServeOptions, asking: Asking, positions: int) -> None:
        self.limits = limits
        self.positions = positions
        # Paths of media are checked here: those that are written to a request's folder lie outside of the root.
        self._reading = replace(asking.reading, format=OURS, columns={}, allow_outside_media=True)
        self._framing = asking.framing
        self._root = None if limits.media_root is None else os.path.realpath(limits.media_root)

    def check_length(self, parsed: Parsed) -> None:
        """Raise ApiError for texts that have more tokens than the model has positions."""
        most = BYTES_PER_TOKEN * self.positions
        if parsed.text_bytes > most:
            message = f"messages: {parsed.text_bytes:,} bytes of text; expected at most {most:,}, as the model has "
            raise ApiError(400, f"{message}{self.positions:,} positions")

    def record(
        self, parsed: Parsed, folder: Path, patience: Patience, on_bytes: OnBytes = lambda count: None
    ) -> Record:
        """The record of a request.

        Args:
            folder: an empty one, for the media that the request holds or names by an address.
            on_bytes: see ``fetch``.

        Raises:
            ApiError: it cannot be answered.
        """
        media = _Media(folder, patience, room=int(self.limits.max_body_mb * 1e6), on_bytes=on_bytes)
        turns = []
        for turn in parsed.messages:
            # Nothing but these two: other forms of turns name files of this machine.
            role = "system" if turn.get("role") == "developer" else turn.get("role")  # OpenAI's newer name
            turns.append({"role": role, "content": self._content(turn.get("content"), media)})
        if turns:
            turns[-1]["content"] = self._with_request(turns[-1]["content"])
        row: dict[str, Any] = {"messages": turns}
        reading = self._reading
        if any(each["role"] == "system" for each in turns):
            reading = replace(reading, system=None)
        elif self._framing.system is not None:
            row["system"] = self._framing.system
        seed = parsed.options.seed
        drawn_by = uuid.uuid4().hex if seed is None else f"seed {seed}"
        try:
            record = read_row(Row("request", drawn_by, row), Path("/"), reading)
        except RecordError as error:
            raise self.refusal(error, folder) from None
        except (TypeError, ValueError, RecursionError, KeyError, AttributeError):
            raise ApiError(400, "messages: expected a list of objects with role and content") from None
        if record.solution:
            raise ApiError(400, "messages: expected the last one to be the user's")
        self._check_places(record, folder)
        return record

    def _check_places(self, record: Record, folder: Path) -> None:
        """Raise ApiError for a medium outside of the folders that the request may read.

        Its name was checked. But what is read may be another file, as that of a name without its ending.
        """
        folders = [os.path.realpath(folder)]
        if self._root is not None:
            folders.append(self._root)
        for path in (*record.videos, *record.images):
            if all(outside_of(each, path) is not None for each in folders):
                raise ApiError(400, "messages: a medium leads out of the media root")

    def refusal(self, error: Exception, folder: Path) -> ApiError:
        """The answer to a request with bad data. It tells nothing of where files are, or of what is in other files."""
        if not isinstance(error, BadMediaError):
            told = str(error).replace(f"{folder}{os.sep}", "medium ")
            return ApiError(400, told if self._root is None else told.replace(f"{self._root}{os.sep}", ""))
        name = "a medium"
        reason = error.reason
        own = Path(error.path)
        if own.is_relative_to(folder):
            name = f"medium {own.stem}"
            if own.suffix == _FETCHED:
                reason = ""
        elif self._root is not None and own.is_relative_to(self._root):
            name = str(own.relative_to(self._root))
            reason = "" if error.kind == "not a video" else reason
        # A reason may quote the beginning of a file, which is not the client's to read.
        return ApiError(400, f"{name}: {reason or error.kind}")

    def _content(self, parts: Any, media: _Media) -> Any:
        """The content of a message as rows have it. Behind media before all text stands what training has there."""
        if not isinstance(parts, list):
            if parts is not None and not isinstance(parts, str):
                raise ApiError(400, "messages: expected content that is a text or a list of parts")
            return parts
        found: list[Any] = []
        for part in parts:
            kind = _kind(part)
            if kind == "text":
                found.append({"type": "text", "text": part.get("text")})
                continue
            if kind not in MEDIA:
                shown = beginning(repr(kind))
                raise ApiError(400, f"messages: expected parts of type text, video_url or image_url, got {shown}")
            if media.count >= self.limits.max_media:
                most = self.limits.max_media
                raise ApiError(400, f"messages: expected at most {most} clips and images (--max_media)")
            url = _url(part)
            try:
                if not isinstance(url, str):
                    raise ValueError('expected {"url": ...}')
                path = self.path_of(url, media)
            except (ValueError, OSError) as error:
                media.patience.check()  # the end of a request ends its downloads
                status = 429 if isinstance(error, BusyError) else 400
                raise ApiError(status, f"{kind} {str(url)[:80]!r}: {error}") from None
            media.count += 1
            # Not the text alone: one whose letters are those of base64 would be read as the medium itself, and stored.
            found.append({"type": MEDIA[kind], MEDIA[kind]: {"path": path}})
        return self._with_spaces(found)

    def _with_spaces(self, parts: list[Any]) -> list[Any]:
        """The parts with a text behind each medium in front, where training has one and the request has none."""
        media = list(takewhile(lambda part: part["type"] != "text", parts))
        rest = parts[len(media) :]
        text = str(rest[0].get("text")) if rest else ""
        spaced: list[Any] = []
        for number, (medium, space) in enumerate(zip(media, self._framing.spaces(len(media)), strict=True), start=1):
            spaced.append(medium)
            # A client that writes the new line itself gets no second one.
            if space and not (number == len(media) and text.startswith(space)):
                spaced.append({"type": "text", "text": space})
        return [*spaced, *rest]

    def _with_request(self, content: Any) -> Any:
        """The content of the last turn with the request for an answer that stands behind questions of training."""
        is_text = isinstance(content, str)
        parts = [{"type": "text", "text": content}] if is_text else content
        if not isinstance(parts, list):
            return content
        written = "".join(str(part.get("text", "")) for part in parts)
        request = request_behind(written, self._framing, self._reading)
        if not request:
            return content
        return content + request if is_text else [*parts, {"type": "text", "text": request}]

    def path_of(self, url: str, media: _Media) -> str:
        """The path of a medium. One that is not a file of this machine is written to the folder of the request.

        Raises:
            ValueError, OSError: it may not be read, or cannot be.
            ApiError: the time of the request is up.
        """
        if not url.startswith("data:") and len(url) > LONGEST_URL:
            raise ValueError(f"has more than {LONGEST_URL:,} characters")
        target = media.folder / str(media.count)
        if is_address(url):
            if not self.limits.allow_http:
                raise ValueError("this server fetches nothing (--allow_http); send a data URL")
            media.patience.check()
            data = fetch(
                url,
                most_bytes=media.room,
                seconds=min(FETCH_SECONDS, media.patience.left()),
                allow_private=self.limits.allow_private_http,
                client=media.patience.client,
                at_end=media.patience.at_end,
                on_bytes=media.on_bytes,
            )
            media.patience.check()  # what was cut off where the request ended may look like a whole file
            media.room -= len(data)
            target = target.with_suffix(_FETCHED)
        elif url.startswith("data:"):
            text = url.partition(";base64,")[2]
            if not text:
                raise ValueError("expected data:TYPE;base64,DATA")
            data = base64.b64decode(text, validate=True)
        elif self._root is None:
            raise ValueError("this server reads no files (--media_root); send a data URL")
        else:
            name = unquote(url.removeprefix("file://")) if url.startswith("file://") else url
            full = os.path.realpath(os.path.join(self._root, name))
            if outside_of(self._root, full) is not None:
                raise ValueError("leads out of the media root")
            if full == self._root:  # its images would be the frames of a clip
                raise ValueError("names the media root; write the path of a file or folder below it")
            return full
        target.write_bytes(data)
        return str(target)


_FETCHED = ".fetched"


@dataclass
class _Media:
    """The media of a request while it is read.

    Attributes:
        room: bytes that may still be fetched for it.
        on_bytes: see ``fetch``.
        count: of those so far.
    """

    folder: Path
    patience: Patience
    room: int
    on_bytes: OnBytes
    count: int = 0
