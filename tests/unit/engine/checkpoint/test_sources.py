import hashlib
import json
import multiprocessing
import os
import sys
import threading
from pathlib import Path

import pytest

from antiphon_engine.api.checkpoint import resolve_model
from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.conversion import cached_directory, convert_gguf
from antiphon_engine.checkpoint.demo import DividedFile, join
from antiphon_engine.checkpoint.sources import Sources
from support.fake_hub import FakeHub

CONTENT = b"the whole file, in three parts"


def silent(stage, done, total):
    pass


class FakeConverter:
    """Writes what it is given; or fails after half of it."""

    def __init__(self):
        self.fails = False
        self.calls = []

    def __call__(self, source, target, *, tie, progress):
        self.calls.append((source.name, tie))
        (target / "model.safetensors").write_bytes(source.read_bytes())
        if self.fails:
            raise StartupError("failed half way")
        (target / "config.json").write_text("{}")
        (target / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')


@pytest.fixture
def demo(tmp_path):
    (tmp_path / "parts").mkdir()
    parts = [tmp_path / "parts" / f"{i}.bin" for i in range(3)]
    for i, part in enumerate(parts):
        part.write_bytes(CONTENT[i * 10 : (i + 1) * 10])
    return DividedFile(
        name="tiny",
        parts=parts,
        size_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        sampling_defaults={"temperature": 0.5, "top_k": 9},
    )


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def sources(demo=None, convert=None):
    return Sources(hub=FakeHub(), demo=lambda: demo, convert=convert or FakeConverter())


def names(directory):
    return sorted(path.name for path in directory.iterdir() if not path.name.endswith(".lock"))


def test_directory_is_its_own_checkpoint(tmp_path, cache):
    assert resolve_model(str(tmp_path), cache_dir=cache, progress=silent) == tmp_path
    assert not cache.exists()


@pytest.mark.parametrize("model", ["nothing", "/no/such/dir", "./x/y", "a/b/c", "owner/x.gguf", ""])
def test_what_is_no_model_is_refused_with_what_could_be_given(cache, model):
    with pytest.raises(StartupError, match="give a checkpoint directory"):
        resolve_model(model, cache_dir=cache, progress=silent, sources=sources())


def test_other_files_are_refused(tmp_path, cache):
    (tmp_path / "model.bin").touch()

    with pytest.raises(StartupError, match="neither"):
        resolve_model(str(tmp_path / "model.bin"), cache_dir=cache, progress=silent)


def test_demo_is_joined_and_converted_once_with_progress(demo, cache):
    convert = FakeConverter()
    stages = []

    def progress(stage, done, total):
        stages.append((stage, done, total))

    first = resolve_model(
        "demo", cache_dir=cache, progress=progress, sources=sources(demo, convert)
    )
    second = resolve_model(
        "demo", cache_dir=cache, progress=progress, sources=sources(demo, convert)
    )

    assert first == second
    assert (first / "model.safetensors").read_bytes() == CONTENT
    assert convert.calls == [("tiny.gguf", True)]
    assert stages == [("join", 10, 30), ("join", 20, 30), ("join", 30, 30)]
    assert names(cache) == [first.name]


def test_demo_has_its_authors_sampling_defaults_beside_its_end_ids(demo, cache):
    checkpoint = resolve_model("demo", cache_dir=cache, progress=silent, sources=sources(demo))

    generation = json.loads((checkpoint / "generation_config.json").read_text())
    assert generation == {
        "eos_token_id": [7, 5],
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 9,
    }


def test_demo_of_other_content_is_refused_and_nothing_is_left(demo, cache):
    demo.parts[1].write_bytes(b"0123456789")

    with pytest.raises(StartupError, match="not the expected file"):
        resolve_model("demo", cache_dir=cache, progress=silent, sources=sources(demo))

    assert names(cache) == []


def test_finished_join_is_not_redone_after_a_failed_conversion(demo, cache):
    convert = FakeConverter()
    convert.fails = True
    with pytest.raises(StartupError, match="half way"):
        resolve_model("demo", cache_dir=cache, progress=silent, sources=sources(demo, convert))
    assert names(cache) == ["tiny.gguf"]
    convert.fails = False
    stages = []

    resolve_model(
        "demo",
        cache_dir=cache,
        progress=lambda *news: stages.append(news),
        sources=sources(demo, convert),
    )

    assert stages == []
    assert len(convert.calls) == 2


def test_damaged_join_is_redone(demo, tmp_path):
    target = tmp_path / "joined.gguf"
    target.write_bytes(CONTENT[:-1])

    join(demo, target, progress=silent)

    assert target.read_bytes() == CONTENT


def crash_half_way(cache):
    def fill(target):
        (target / "half").touch()
        os._exit(9)

    cached_directory(cache, "model", fill, progress=silent)


def test_crash_leaves_no_half_model_and_the_next_start_cleans_up(cache):
    child = multiprocessing.get_context("fork").Process(target=crash_half_way, args=(cache,))
    child.start()
    child.join(30)
    assert child.exitcode == 9
    assert not (cache / "model").exists()
    assert names(cache) == [".partial-model"]

    filled = cached_directory(cache, "model", lambda t: (t / "whole").touch(), progress=silent)

    assert names(filled) == ["whole"]
    assert names(cache) == ["model"]


def test_two_at_once_convert_once(cache):
    started, go_on = threading.Event(), threading.Event()
    fills, waits, results = [], [], []

    def slow_fill(target):
        fills.append(target)
        started.set()
        assert go_on.wait(30)

    def first():
        results.append(cached_directory(cache, "model", slow_fill, progress=silent))

    def progress(stage, done, total):
        waits.append(stage)
        go_on.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert started.wait(30)
    results.append(cached_directory(cache, "model", slow_fill, progress=progress))
    thread.join(30)

    assert len(fills) == 1
    assert waits[0] == "wait for another process"
    assert results == [cache / "model"] * 2


def test_unwritable_cache_is_told(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(StartupError, match="can't write the model cache"):
        cached_directory(tmp_path / "file", "model", lambda target: None, progress=silent)


def test_gguf_is_converted_again_when_it_has_changed(tmp_path, cache):
    file = tmp_path / "some.gguf"
    convert = FakeConverter()
    results = []
    for content in (b"one", b"one", b"other"):
        if not file.exists() or file.read_bytes() != content:
            file.write_bytes(content)
        results.append(
            resolve_model(
                str(file), cache_dir=cache, progress=silent, sources=sources(convert=convert)
            )
        )

    assert results[0] == results[1] != results[2]
    assert convert.calls == [("some.gguf", False)] * 2


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('print(\'{"error": "no such tensor"}\'); raise SystemExit(1)', "no such tensor"),
        ("print('about to die', flush=True); import os; os.kill(os.getpid(), 9)", "about to die"),
        ("raise SystemExit(3)", "without a word"),
        ("print('fine')", "fine"),
        (
            'print(\'{"stage": "converted", "done": 1, "total": 1}\'); raise SystemExit(4)',
            "status 4",
        ),
    ],
)
def test_failed_conversion_says_why(tmp_path, script, message):
    with pytest.raises(StartupError, match=f"can't convert .*some.gguf: .*{message}"):
        convert_gguf(
            Path("some.gguf"),
            tmp_path,
            tie=False,
            progress=silent,
            command=(sys.executable, "-c", script),
        )


def test_progress_of_the_conversion_is_passed_on(tmp_path):
    script = """
import json
for stage, done in (("a", 1), ("b", 2), ("converted", 3)):
    print("noise"); print(json.dumps({"stage": stage, "done": done, "total": 3}), flush=True)
"""
    news = []

    convert_gguf(
        Path("x.gguf"),
        tmp_path,
        tie=False,
        progress=lambda *told: news.append(told),
        command=(sys.executable, "-c", script),
    )

    assert news == [("a", 1, 3), ("b", 2, 3), ("converted", 3, 3)]
