import pytest

from antiphon_engine.api.checkpoint import resolve_model
from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.hub import HuggingFaceHub
from antiphon_engine.checkpoint.sources import Sources
from support.fake_hub import FakeHub
from support.tiny_checkpoints import make_checkpoint


@pytest.fixture
def checkpoint(tmp_path):
    made = make_checkpoint(tmp_path / "checkpoint")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / name).write_text("{}")
    return made


def resolve(hub, tmp_path, progress=lambda stage, done, total: None):
    return resolve_model(
        "owner/name", cache_dir=tmp_path, progress=progress, sources=Sources(hub=hub)
    )


def test_whole_checkpoint_of_the_cache_is_used_without_the_hub(tmp_path, checkpoint):
    hub = FakeHub(cached=checkpoint)

    assert resolve(hub, tmp_path) == checkpoint
    assert hub.fetches == []


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "tokenizer.json"])
def test_checkpoint_that_is_cached_in_part_is_fetched(tmp_path, checkpoint, missing):
    (checkpoint / missing).unlink()
    hub = FakeHub(cached=checkpoint, fetched=tmp_path)
    stages = []

    assert resolve(hub, tmp_path, lambda *news: stages.append(news)) == tmp_path
    assert hub.fetches == ["owner/name"]
    assert stages == [("fetch", 0, 0)]


def test_failure_of_the_hub_is_told(tmp_path):
    with pytest.raises(StartupError, match="can't fetch owner/name"):
        resolve(FakeHub(), tmp_path)


def test_unreachable_hub_is_told_with_what_to_do(tmp_path):
    hub = HuggingFaceHub(cache_dir=tmp_path / "hub", endpoint="http://127.0.0.1:9")

    with pytest.raises(StartupError, match=r"can't fetch owner/name .* local directory") as raised:
        resolve(hub, tmp_path)

    assert "\n" not in str(raised.value)


def test_empty_cache_holds_nothing(tmp_path):
    assert HuggingFaceHub(cache_dir=tmp_path).cached("owner/name") is None
