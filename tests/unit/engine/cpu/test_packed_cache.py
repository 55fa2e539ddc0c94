"""Packed weights on disk: what is read back, what is refused, and how much is kept."""

import errno
import fcntl
import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.cpu.kernel_choice import by_name
from antiphon_engine.cpu.packed_cache import PackedCache, file_identity
from antiphon_engine.cpu.packed_loading import KEEPER, WeightsToLoad, load_packed
from antiphon_engine.cpu.products import plan_products
from antiphon_engine.model.config import parse_model_config
from antiphon_engine.quantization import Quantization
from support.tiny_checkpoints import TinyModel, make_checkpoint

KEY = "some weights"


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def cache(tmp_path):
    return PackedCache(directory=tmp_path / "packed", max_bytes=1 << 30, min_bytes=0)


def arrays_of(*sizes, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, size, np.uint8) for size in sizes]


def blank(arrays):
    return [np.zeros_like(array) for array in arrays]


def files(cache):
    return sorted(cache.directory.iterdir())


def test_what_was_written_is_read(cache, pool):
    # The second is longer than what is read at once.
    arrays = arrays_of(1000, (9 << 20) + 17, 3)

    assert cache.write(KEY, arrays)

    found = blank(arrays)
    assert cache.read(KEY, found, pool)
    assert all(np.array_equal(*pair) for pair in zip(found, arrays, strict=True))


def test_other_key_or_other_sizes_are_not_found(cache, pool):
    arrays = arrays_of(100, 50)
    cache.write(KEY, arrays)

    assert not cache.read("others", blank(arrays), pool)
    assert not cache.read(KEY, [np.zeros(50, np.uint8), np.zeros(100, np.uint8)], pool)
    assert not cache.read(KEY, [np.zeros(150, np.uint8)], pool)


@pytest.mark.parametrize("place", [0, 5000, -1, -20, -60])
def test_damaged_file_is_not_taken(cache, pool, place):
    arrays = arrays_of(5 << 20, 64)
    cache.write(KEY, arrays)
    (path,) = files(cache)
    content = bytearray(path.read_bytes())
    content[place] ^= 64
    path.write_bytes(content)

    assert not cache.read(KEY, blank(arrays), pool)


@pytest.mark.parametrize(
    "description",
    [
        b"[]",
        b'{"key": "some weights", "sizes": 6000, "checksums": 1}',
        b'{"key": "some weights", "sizes": "6000", "checksums": []}',
        b'{"key": "some weights", "sizes": [6000], "checksums": 1}',
        b'{"key": "some weights", "sizes": [6000], "checksums": [], "more": ' + b"[" * 9999,
        b'{"key": "\xff"}',
    ],
)
def test_file_that_says_of_itself_what_none_says_is_not_taken(cache, pool, description):
    arrays = arrays_of(6000)
    cache.write(KEY, arrays)
    (path,) = files(cache)
    end = struct.pack("<Q8s", 6000, b"antiphon")
    path.write_bytes(path.read_bytes()[:6000] + description + end)

    assert not cache.read(KEY, blank(arrays), pool)


@pytest.mark.parametrize("kept", [0, 10, 5000, -1])
def test_file_that_ends_early_is_not_taken(cache, pool, kept):
    arrays = arrays_of(6000)
    cache.write(KEY, arrays)
    (path,) = files(cache)
    path.write_bytes(path.read_bytes()[:kept])

    assert not cache.read(KEY, blank(arrays), pool)


def test_files_that_were_used_longest_ago_make_room(cache, pool):
    cache = replace(cache, max_bytes=4000)
    arrays = arrays_of(1000)
    for number, key in enumerate("abc"):
        cache.write(key, arrays)
        for path in files(cache):
            # Their times may be too close to tell.
            os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - (number + 1)))
    assert cache.read("a", blank(arrays), pool)

    cache.write("d", arrays)

    found = [key for key in "abcd" if cache.read(key, blank(arrays), pool)]
    assert found == ["a", "c", "d"]


def test_what_is_too_large_or_too_small_is_not_kept(cache):
    arrays = arrays_of(1000)

    assert not replace(cache, max_bytes=999).write(KEY, arrays)
    assert not replace(cache, min_bytes=1001).write(KEY, arrays)

    assert not cache.directory.exists()


def test_directory_that_cannot_be_written_costs_nothing_but_the_file(tmp_path, pool):
    (tmp_path / "file").write_text("")
    cache = PackedCache(directory=tmp_path / "file" / "packed", max_bytes=1 << 20, min_bytes=0)

    assert not cache.write(KEY, arrays_of(10))
    assert not cache.read(KEY, arrays_of(10), pool)


def test_what_a_process_left_half_written_is_removed(cache):
    cache.directory.mkdir()
    (cache.directory / ".partial-1-left.packed").write_bytes(b"x")
    written = cache.directory / ".partial-2-written.packed"
    with written.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        cache.write(KEY, arrays_of(10))

        assert [path.name for path in files(cache) if path.name.startswith(".")] == [written.name]


@pytest.mark.parametrize("name", ["others.packed", ".partial-left"])
def test_what_is_no_file_stays_and_is_in_nobodys_way(cache, pool, name):
    cache = replace(cache, max_bytes=5000)
    arrays = arrays_of(1000)
    cache.directory.mkdir()
    (cache.directory / name).symlink_to("nowhere")
    (cache.directory / f"{name}-folder.packed").mkdir()

    for key in "abcdef":
        assert cache.write(key, arrays)

    assert cache.read("f", blank(arrays), pool)
    assert (cache.directory / name).is_symlink()


def test_file_on_a_disk_that_is_only_read_is_taken(cache, pool):
    def refuse(path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    arrays = arrays_of(1000)
    cache.write(KEY, arrays)

    assert replace(cache, mark_used=refuse).read(KEY, blank(arrays), pool)


def test_files_are_told_apart_by_time_and_content(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"a" * 10_000)
    facts = path.stat()
    before = file_identity([path])
    assert file_identity([path]) == before

    path.write_bytes(b"a" * 9_999 + b"b")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    changed = file_identity([path])
    path.write_bytes(b"a" * 10_000)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))

    assert len({before, changed, file_identity([path])}) == 3


class Loaded:
    """A tiny model's weights, loaded with a cache."""

    def __init__(self, checkpoint: Path, cache: PackedCache | None, quantization: Quantization):
        config = parse_model_config(Fields.read(checkpoint / "config.json"))
        products = plan_products(config, dtype="bfloat16", quantization=quantization, kinds={})
        isas = by_name(products, "portable")
        wanted = WeightsToLoad(config=config, products=products, isas=isas, num_threads=2)
        stages = []
        weights = load_packed(
            wanted, checkpoint, cache=cache, on_progress=lambda *news: stages.append(news)
        )
        for thread in threading.enumerate():
            if thread.name == KEEPER:
                thread.join()
        assert stages[-1] == ("load", len(weights.targets), len(weights.targets))
        self.arrays = [array.copy() for each in weights.matrices for array in each.arrays]
        self.norm = weights.norm.copy()

    def is_same_as(self, other):
        pairs = zip([*self.arrays, self.norm], [*other.arrays, other.norm], strict=True)
        return all(np.array_equal(*pair) for pair in pairs)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("tiny") / "model", TinyModel(family="qwen2"))


@pytest.mark.parametrize("quantization", [Quantization.NONE, Quantization.INT4])
def test_second_load_takes_the_file_and_gets_the_same_weights(cache, checkpoint, quantization):
    packed = Loaded(checkpoint, None, quantization)
    assert Loaded(checkpoint, cache, quantization).is_same_as(packed)
    (path,) = files(cache)
    os.utime(path, (1, 1))

    assert Loaded(checkpoint, cache, quantization).is_same_as(packed)

    assert files(cache) == [path]
    assert path.stat().st_mtime > 1, "it was not read"


def test_damaged_file_is_packed_anew_and_replaced(cache, checkpoint):
    packed = Loaded(checkpoint, cache, Quantization.INT8)
    (path,) = files(cache)
    whole = path.read_bytes()
    path.write_bytes(b"\xff" * 100 + whole[100:])

    assert Loaded(checkpoint, cache, Quantization.INT8).is_same_as(packed)

    assert path.read_bytes() == whole


def test_other_form_or_other_checkpoint_is_another_file(cache, checkpoint, tmp_path):
    other = make_checkpoint(tmp_path / "other", TinyModel(family="qwen2", seed=5))
    first = Loaded(checkpoint, cache, Quantization.NONE)

    Loaded(checkpoint, cache, Quantization.INT8)
    second = Loaded(other, cache, Quantization.NONE)

    assert len(files(cache)) == 3
    assert not first.is_same_as(second)
