"""Media in files: the same values, joined without a copy, in no memory until they are used, gone with their owner."""

import errno
import gc
import os
import tempfile
import weakref

import pytest
import torch

from qwenvl.model import waiting_media
from qwenvl.model.waiting_media import in_files, let_go, put_aside, rows_of
from qwenvl.types import PromptBatch

PAGE = 4096
pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs /proc of Linux")


@pytest.fixture
def prompts(exact_model, random_prompts):
    return [random_prompts(exact_model("qwen2_5_vl"), [words], seed) for seed, words in enumerate(["tvt", "t", "ivv"])]


def same_media(one, other) -> bool:
    pairs = [(getattr(one, name), getattr(other, name)) for name in waiting_media.MEDIA]
    return all((a is None and b is None) or (a.dtype == b.dtype and torch.equal(a, b)) for a, b in pairs)


def memory_of(value: torch.Tensor) -> tuple[int, int]:
    """Bytes of the mapping that a tensor lies in, and those of it that are in this process's memory."""
    size = resident = 0
    inside = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first, *rest = line.split()
            if "-" in first and not first.endswith(":"):
                start, end = (int(number, 16) for number in first.split("-"))
                inside = start <= value.data_ptr() < end
            elif inside and first in ("Size:", "Rss:"):
                kilobytes = int(rest[0]) * 1024
                size, resident = (kilobytes, resident) if first == "Size:" else (size, kilobytes)
    return size, resident


def test_media_in_files_are_the_same_and_join_without_a_copy(prompts):
    stored = in_files(each for each in prompts)
    assert all(map(same_media, stored, prompts))
    assert stored[1].pixel_values_videos is None
    assert put_aside(prompts[0]) is prompts[0]  # it is small
    again = in_files(stored)
    assert again[0].pixel_values_videos is stored[0].pixel_values_videos  # what lies in a file stays there

    joined, expected = type(stored[0]).join(stored), type(prompts[0]).join(prompts)
    assert same_media(joined, expected)
    assert joined.pixel_values_videos.data_ptr() == stored[0].pixel_values_videos.data_ptr()
    for rows in ([0, 1, 2], [2, 0], [1], [2, 2]):
        assert same_media(joined.select(rows), expected.select(rows))
    last = joined.select([2]).pixel_values_videos
    assert last.data_ptr() == stored[2].pixel_values_videos.data_ptr()
    mixed = [stored[0].pixel_values_videos, prompts[2].pixel_values_videos]
    assert torch.equal(rows_of(mixed), expected.pixel_values_videos)


def test_half_precision_and_integers_lie_in_one_file(prompts):
    bytes_first = torch.arange(3, dtype=torch.uint8).view(1, 3)
    shelf = waiting_media._Shelf()
    halves = torch.randn(4, 5, dtype=torch.bfloat16)
    for value in (bytes_first, halves, halves[:0], None):
        shelf.put(value)
    one, two, empty, none = shelf.tensors()
    assert torch.equal(one, bytes_first) and torch.equal(two, halves) and empty.shape == (0, 5) and none is None


def test_what_is_let_go_takes_no_memory_until_it_is_read_again(prompts):
    values = torch.randn(64 * PAGE)
    stored = in_files([waiting_media._with_media(prompts[0], [None, values.view(64, -1)])])[0]
    media = stored.pixel_values_videos
    assert torch.equal(media.flatten(), values)
    size, resident = memory_of(media)
    assert size == resident == values.nbytes
    let_go(stored, prompts[1])
    assert memory_of(media) == (size, 0)
    assert torch.equal(media.flatten(), values)


def test_no_file_is_left_and_no_map(prompts, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, files = len(waiting_media._maps), len(os.listdir("/proc/self/fd"))
    stored = in_files(prompts)
    assert len(waiting_media._maps) == before + 2 and not list(tmp_path.iterdir())
    view = stored[2].pixel_values_videos[1:]
    kept = view.clone()
    del stored
    assert torch.equal(view, kept)  # its file is there as long as it is
    assert len(waiting_media._maps) == before + 1
    del view
    assert len(waiting_media._maps) == before and len(os.listdir("/proc/self/fd")) == files


def test_media_stay_in_memory_where_the_disk_is_full(prompts, monkeypatch, caplog):
    waiting_media._tell_of_full_disk.cache_clear()
    write = os.pwrite

    def full_after_the_first(file, data, start):
        if start:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data, start)

    def full_in_the_midst(file, data, start):
        if not start:
            return write(file, data, start)
        write(file, data[:100], start)
        return full_after_the_first(file, data, start)

    sizes = []
    cut = os.ftruncate
    monkeypatch.setattr(os, "pwrite", full_in_the_midst)
    monkeypatch.setattr(os, "ftruncate", lambda file, size: (cut(file, size), sizes.append(os.fstat(file).st_size)))
    stored = in_files(prompts)
    assert sizes == [prompts[0].pixel_values_videos.nbytes]  # the disk has the rest of its space again
    assert all(map(same_media, stored, prompts))
    assert stored[2].pixel_values_videos is prompts[2].pixel_values_videos
    assert same_media(type(stored[0]).join(stored), type(prompts[0]).join(prompts))
    assert all(map(same_media, in_files(prompts), prompts))
    (told,) = caplog.messages
    assert told.startswith("no space left in /tmp for the media of micro-batches") and "TMPDIR" in told


def test_large_files_are_written_in_parts(prompts, monkeypatch):
    monkeypatch.setattr(waiting_media, "_AT_ONCE", 1000)
    assert all(map(same_media, in_files(prompts), prompts))


def test_who_holds_prompts_that_were_put_aside_holds_no_pixels(monkeypatch):
    """As a loader holds the batch that it gave last."""
    monkeypatch.setattr(waiting_media, "LARGE", 0)
    pixels = torch.arange(24, dtype=torch.uint8).view(4, 6)
    batch = PromptBatch([], [], [], *torch.zeros(2, 1, 1), pixel_values_videos=pixels.clone())
    held, memory = batch, weakref.ref(batch.pixel_values_videos)
    assert put_aside(batch) is held and torch.equal(held.pixel_values_videos, pixels)
    gc.collect()
    assert memory() is None and held.pixel_values is None
