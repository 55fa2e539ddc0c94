import json
import subprocess
import sys

import pytest

from antiphon_engine.api.checkpoint import inspect_checkpoint
from antiphon_engine.api.errors import StartupError
from support.tiny_checkpoints import CONTEXT_TOKENS, TinyModel, make_checkpoint


@pytest.fixture
def checkpoint(tmp_path):
    return make_checkpoint(tmp_path / "checkpoint", TinyModel(family="qwen3", vocabulary_size=600))


def set_members(path, **members):
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | members))


def test_facts_are_those_of_the_files(checkpoint):
    info = inspect_checkpoint(checkpoint)

    assert info.architecture == "Qwen3ForCausalLM"
    assert info.vocabulary_size == 600
    assert info.context_tokens == CONTEXT_TOKENS
    assert info.dtype == "float32"
    assert (info.num_layers, info.num_kv_heads, info.head_dim) == (2, 2, 16)
    assert info.model_bytes == (checkpoint / "model.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (5, [5, 7], {5, 7}),
        (5, 7, {5, 7}),
        ([5, 6], None, {5, 6}),
        (None, [7], {7}),
        (None, None, set()),
    ],
)
def test_end_ids_are_the_union_of_both_configurations(checkpoint, config, generation, expected):
    set_members(checkpoint / "config.json", eos_token_id=config)
    set_members(checkpoint / "generation_config.json", eos_token_id=generation)

    assert inspect_checkpoint(checkpoint).end_ids == expected


def test_generation_config_may_be_absent(checkpoint):
    (checkpoint / "generation_config.json").unlink()

    info = inspect_checkpoint(checkpoint)

    assert info.end_ids == {2}
    assert info.sampling_defaults == {}


def test_sampling_defaults_are_those_that_are_given(checkpoint):
    given = {"do_sample": True, "temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1}
    set_members(checkpoint / "generation_config.json", **given)

    defaults = inspect_checkpoint(checkpoint).sampling_defaults

    assert defaults == {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1}


def test_no_sampling_means_greedy(checkpoint):
    set_members(checkpoint / "generation_config.json", do_sample=False, temperature=0.7)

    assert inspect_checkpoint(checkpoint).sampling_defaults["temperature"] == 0.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "no JSON object"),
        ('{"eos_token_id": "x"}', "eos_token_id"),
        ('{"temperature": NaN}', "temperature is nan, but must be a number"),
        ('{"top_p": Infinity}', "top_p is inf, but must be a number"),
    ],
)
def test_broken_generation_config_is_told_in_one_line(checkpoint, content, message):
    (checkpoint / "generation_config.json").write_text(content)

    with pytest.raises(StartupError, match=rf"generation_config\.json.*{message}") as raised:
        inspect_checkpoint(checkpoint)

    assert "\n" not in str(raised.value)


def test_directory_without_a_checkpoint_is_told(tmp_path):
    with pytest.raises(StartupError, match=r"can't read .*config\.json"):
        inspect_checkpoint(tmp_path)


def test_checkpoint_without_weights_is_told(checkpoint):
    (checkpoint / "model.safetensors").unlink()

    with pytest.raises(StartupError, match=r"no \.safetensors file"):
        inspect_checkpoint(checkpoint)


def test_finding_and_inspecting_load_neither_torch_nor_transformers(checkpoint, tmp_path):
    script = """
import sys
from pathlib import Path
from antiphon_engine.api.checkpoint import inspect_checkpoint, resolve_model
directory = resolve_model(sys.argv[1], cache_dir=Path(sys.argv[2]), progress=print)
inspect_checkpoint(directory)
sys.exit(bool({"torch", "transformers"} & sys.modules.keys()))
"""

    subprocess.run(
        [sys.executable, "-c", script, str(checkpoint), str(tmp_path)], check=True, timeout=60
    )
