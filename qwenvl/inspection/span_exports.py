"""Reads labels with times as programs for annotation export them: Label Studio (JSON) and ELAN (.eaf)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

from qwenvl.data.errors import RecordError, kind_of
from qwenvl.data.media.source import VIDEO_SUFFIXES
from qwenvl.data.records.label_studio import counting_annotations, local_file
from qwenvl.files import plain_file
from qwenvl.inspection.spans import LabelledSpan, of_source

SPAN_TYPES = ("timelinelabels", "labels")  # of regions in Label Studio
# Label Studio puts eight hexadecimal digits in front of the name of an uploaded file.
_UPLOADED = re.compile(r"[0-9a-f]{8}-(?=.)")


@dataclass(frozen=True)
class Export:
    """What labels with times have, in one exported file or in several.

    Attributes:
        labelled: the spans, and the errors in the place of those that are wrong.
        other_kinds: how many annotations there are beside spans, by their kind: boxes, choices, tiers without times.
    """

    labelled: list[LabelledSpan | RecordError] = field(default_factory=list)
    other_kinds: Counter[str] = field(default_factory=Counter)


def _label_studio(path: Path) -> Export:
    """A JSON export of Label Studio. Its spans are timeline labels, in frames from 1, and labels with start and end.

    Of several annotations of a task that are not cancelled the one counts that is marked as ground truth.
    """
    try:
        tasks = json.loads(plain_file(path).read_text("utf-8-sig"))
    except RecursionError:
        raise RecordError(f"{path}: not valid JSON: nested too deeply", "JSON") from None
    except ValueError as error:
        raise RecordError(f"{path}: not valid JSON: {error}", "JSON") from None
    if not isinstance(tasks, list):
        raise RecordError(f"{path}: expected the list of tasks that Label Studio exports as JSON, got {kind_of(tasks)}")
    export = Export()
    for number, task in enumerate(tasks):
        where = f"{path}[{number}]"
        try:
            export.labelled.extend(of_source(where, _task_spans(task, where)))
            for annotation in counting_annotations(task):
                kinds = [region["type"] for region in annotation["result"]]
                export.other_kinds.update(kind for kind in kinds if kind not in SPAN_TYPES)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            message = "expected a task with data and annotations as Label Studio exports it"
            export.labelled.append(RecordError(f"{where}: {message}, got {kind_of(task)}"))
    return export


def _task_spans(task: Mapping[str, Any], where: str) -> Iterator[LabelledSpan | RecordError]:
    """The spans of one task. A task of another form raises errors of any kind."""
    annotations = list(map(_span_regions, counting_annotations(task)))
    values = list(map(_values_in_one_order, annotations))
    if any(each != values[0] for each in values):
        yield RecordError(
            f"{where}: has {len(values)} annotations with different labels; keep one, or mark one as ground truth"
        )
        return
    regions = annotations[0] if annotations else {}
    clips = _clips_of(task["data"])
    labelled = {region.get("to_name") for region in regions.values()}
    if len(clips) > 1 or len(labelled) > 1:
        yield RecordError(f"{where}: has labels of several media; make tasks of one clip each")
        return
    [clip] = clips
    for number, region in regions.items():
        place = f"{where}.result[{number}]"
        value = region["value"]
        if not value.get(region["type"]):
            yield RecordError(f"{place}: expected the name of a step, got a region without a label")
        elif region["type"] == "timelinelabels":
            for span in value["ranges"]:
                # Some exports have them as text. To cut 6.5 would move the span without a word.
                if float(span["start"]) % 1 or float(span["end"]) % 1:
                    yield RecordError(f"{place}: expected numbers of frames, got {span['start']} to {span['end']}")
                    continue
                # Frames are counted from 1, and the last one is included.
                start = int(span["start"]) - 1
                end = int(span["end"])
                for label in value["timelinelabels"]:
                    yield LabelledSpan(place, clip, str(label), start, end, in_frames=True, of_player=True)
        elif not {"start", "end"} <= value.keys() or "text" in value:  # of the letters of a text
            yield RecordError(f"{place}: expected a label of the clip with start and end, got {kind_of(value)}")
        else:
            for label in value["labels"]:
                yield LabelledSpan(place, clip=clip, step=str(label), start=value["start"], end=value["end"])


def _span_regions(annotation: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The regions of an annotation that are spans, by their number in it."""
    regions = enumerate(annotation["result"])
    return {number: region for number, region in regions if region["type"] in SPAN_TYPES}


def _values_in_one_order(regions: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """The values of regions as text. Two people may have drawn the same spans one after the other in another order."""
    return sorted(json.dumps(region["value"], sort_keys=True) for region in regions.values())


def _clips_of(data: Mapping[str, Any]) -> set[str]:
    """The clips of a task by their paths."""
    paths = [_clip_path(value) for value in data.values() if isinstance(value, str) and "." in value]
    clips = {path for path in paths if Path(path).suffix.lower() in VIDEO_SUFFIXES}
    if isinstance(data.get("video"), str):
        clips.add(_clip_path(data["video"]))  # addresses of uploads may end without .mp4
    return clips or set(paths[:1])


def _elan(path: Path) -> Export:
    """An ELAN file. Its spans are the annotations of all tiers that have times of their own."""
    try:
        root = ElementTree.fromstring(plain_file(path).read_bytes())
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the last two: of an unknown encoding
        raise RecordError(f"{path}: not valid XML: {error}") from None
    other_kinds: Counter[str] = Counter()
    for tier in root.iterfind("TIER"):
        # Notes on the annotations of another tier, whose times they share.
        without_times = len(tier.findall("ANNOTATION/REF_ANNOTATION"))
        if without_times:
            other_kinds[f"without times, of the tier {tier.get('TIER_ID', '')}"] += without_times
    return Export(list(of_source(str(path), _annotations(root, path))), other_kinds)


def _annotations(root: ElementTree.Element, path: Path) -> Iterator[LabelledSpan | RecordError]:
    """The annotations of an ELAN file with times, in milliseconds.

    The clip is the first medium that the file names, or the one with the file's own name. Where media were
    synchronized, a time of the file is that of the clip less the clip's ``TIME_ORIGIN``.
    """
    header = root.find("HEADER")
    units = "milliseconds" if header is None else header.get("TIME_UNITS", "milliseconds")
    if units != "milliseconds":
        raise RecordError(f"{path}: expected TIME_UNITS in milliseconds, got {kind_of(units)}; save it anew with ELAN")
    media = root.findall("HEADER/MEDIA_DESCRIPTOR")
    # Files of old versions name their clip in the header itself.
    in_header = "" if header is None else header.get("MEDIA_FILE", "")
    address = _address_of(media[0]) if media else in_header
    clip = _clip_path(address) if address else path.stem
    origin = _time_origin(media, clip, str(path))
    slots = {slot.get("TIME_SLOT_ID"): slot.get("TIME_VALUE") for slot in root.iterfind("TIME_ORDER/TIME_SLOT")}
    for number, annotation in enumerate(root.iterfind("TIER/ANNOTATION/ALIGNABLE_ANNOTATION")):
        where = f"{path}[{annotation.get('ANNOTATION_ID', number)}]"
        label = (annotation.findtext("ANNOTATION_VALUE") or "").strip()
        edges = [slots.get(annotation.get(key)) for key in ("TIME_SLOT_REF1", "TIME_SLOT_REF2")]
        if not label:
            yield RecordError(f"{where}: expected the name of a step, got an empty annotation")
        elif not all(edge is not None and re.fullmatch("[0-9]{1,12}", edge) for edge in edges):
            yield RecordError(f"{where}: expected two time slots in milliseconds, got {edges}")
        else:
            start, end = ((origin + int(edge)) / 1000 for edge in edges if edge is not None)
            yield LabelledSpan(where, clip=clip, step=label, start=start, end=end)


def _address_of(medium: ElementTree.Element) -> str:
    """The address of a medium of an ELAN file, which may have that from the file's own folder alone."""
    return medium.get("MEDIA_URL") or medium.get("RELATIVE_MEDIA_URL") or ""


def _time_origin(media: Sequence[ElementTree.Element], clip: str, where: str) -> int:
    """The milliseconds of a clip at which the times of an ELAN file begin.

    Raises:
        RecordError: it is no number, or the file has several for the clip.
    """
    name = Path(clip).name
    origins: list[str] = []
    for medium in media:
        address = _address_of(medium)
        if not address or Path(_clip_path(address)).name == name:
            origins.append(medium.get("TIME_ORIGIN") or "0")
    if len(set(origins)) > 1:
        raise RecordError(
            f"{where}: the file has several times at which {name} begins (TIME_ORIGIN {', '.join(origins)}); leave one "
            "medium in it (in ELAN: Edit, Linked Files)"
        )
    origin = origins[0] if origins else "0"
    if not re.fullmatch("-?[0-9]{1,12}", origin):
        raise RecordError(f"{where}: TIME_ORIGIN of {name}: expected milliseconds, got {kind_of(origin)}")
    return int(origin)


def _clip_path(address: str) -> str:
    """The path of a clip in an address: of a path, local storage or a URL. Of an upload the file name alone."""
    if address.lower().startswith("file:"):  # ELAN writes names as they are, with # and ?
        return unquote(address[len("file:") :]).replace("\\", "/").strip("/")
    local = local_file(address)
    if local is not None:
        return local.replace("\\", "/").strip("/")
    # Behind # and ? an address has no more of its path, and a name of a file has.
    is_url = "://" in address or address.startswith("/data/")  # Label Studio leaves its own host out
    path = unquote(urlsplit(address).path if is_url else address).replace("\\", "/")
    if "/upload/" not in address:
        return path.strip("/").removeprefix("./")
    return _UPLOADED.sub("", Path(path).name, count=1)


EXPORTS: dict[str, Callable[[Path], Export]] = {".json": _label_studio, ".eaf": _elan}
"""The formats of exported files, by their endings."""

# A .json beside label files may be anything, and Label Studio writes one for a whole project.
FOR_EACH_CLIP = (".eaf",)
"""Those that have a file for each clip, which may lie in a folder of label files."""


def is_export(path: Path) -> bool:
    """Whether a file is exported by a program for annotation, by its ending."""
    return path.suffix.lower() in EXPORTS


def read_export(path: Path) -> Export:
    """What an exported file has.

    Raises:
        RecordError: the file is not of its format.
    """
    return EXPORTS[path.suffix.lower()](path)
