import json
import struct
from functools import partial

import gguf
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from antiphon_engine.api.checkpoint import Sources, inspect_checkpoint, resolve_model
from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.blocks import expand
from antiphon_engine.checkpoint.conversion import convert_gguf
from antiphon_engine.checkpoint.gguf import convert
from antiphon_engine.checkpoint.shards import find_shards
from support.engine_zygote import forked
from support.fake_hub import FakeHub
from support.tiny_checkpoints import load_reference, prompts
from support.tiny_gguf import (
    CHAT_TEMPLATE,
    CONTEXT_TOKENS,
    END_OF_TEXT_ID,
    END_OF_TURN_ID,
    VOCABULARY_SIZE,
    write_gguf,
)
from support.whole_prompt import prompt_logits

FLOAT32 = torch.float32


def silent(stage, done, total):
    pass


def converted(tmp_path, *, tie=False, **model):
    tensors = write_gguf(tmp_path / "tiny.gguf", **model)
    target = tmp_path / "checkpoint"
    target.mkdir()
    convert(tmp_path / "tiny.gguf", target, tie=tie, progress=silent)
    return target, tensors


def load_gguf_reference(path):
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_config(config, dtype=FLOAT32)
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    model.load_state_dict(loaded["tensors"])
    return model.eval()


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_logits_are_those_of_the_references_own_gguf_loader(tmp_path, architecture):
    checkpoint, _ = converted(tmp_path, architecture=architecture)
    reference = load_gguf_reference(tmp_path / "tiny.gguf")
    (prompt,) = prompts(1, least=30, most=30, vocabulary_size=VOCABULARY_SIZE)

    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0]

    assert (prompt_logits(checkpoint, prompt, FLOAT32) - expected).abs().max() < 1e-4


def test_configuration_and_ends_are_whole(tmp_path):
    checkpoint, _ = converted(tmp_path)

    info = inspect_checkpoint(checkpoint)

    assert info.architecture == "Qwen2ForCausalLM"
    assert info.context_tokens == CONTEXT_TOKENS
    assert info.vocabulary_size == VOCABULARY_SIZE
    assert info.end_ids == {END_OF_TURN_ID, END_OF_TEXT_ID}
    assert info.dtype == "float32"


def test_tokenizer_and_template_are_kept(tmp_path):
    checkpoint, _ = converted(tmp_path)

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    assert tokenizer.decode(tokenizer("hello, wörld\n").input_ids) == "hello, wörld\n"
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.model_max_length == CONTEXT_TOKENS


def test_tying_takes_the_output_matrix_for_both(tmp_path):
    checkpoint, tensors = converted(tmp_path, tie=True)

    stored = load_file(checkpoint / "model.safetensors")

    assert "lm_head.weight" not in stored
    expected = torch.from_numpy(tensors["output.weight"])
    assert torch.equal(stored["model.embed_tokens.weight"], expected)
    assert json.loads((checkpoint / "config.json").read_text())["tie_word_embeddings"]
    assert load_reference(checkpoint).lm_head.weight.equal(expected)


def test_file_without_an_output_matrix_is_tied(tmp_path):
    checkpoint, _ = converted(tmp_path, tied=True)

    assert json.loads((checkpoint / "config.json").read_text())["tie_word_embeddings"]


KEPT = [gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q5_0", "Q8_0")]


def test_blocks_are_kept_as_they_are(tmp_path):
    checkpoint, tensors = converted(tmp_path, matrix_type=gguf.GGMLQuantizationType.Q8_0)

    stored = load_file(checkpoint / "model.safetensors")["lm_head.weight"]

    assert stored.dtype is torch.uint8
    assert (expand("Q8_0", stored.numpy()) == tensors["output.weight"]).all()
    assert find_shards(checkpoint).kinds["lm_head.weight"] == "Q8_0"
    assert inspect_checkpoint(checkpoint).dtype == "bfloat16"


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", KEPT)
def test_kept_blocks_compute_what_they_stand_for(tmp_path, architecture, kind):
    checkpoint, _ = converted(tmp_path, architecture=architecture, matrix_type=kind)
    reference = load_gguf_reference(tmp_path / "tiny.gguf")
    (prompt,) = prompts(1, least=30, most=30, vocabulary_size=VOCABULARY_SIZE)
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0]

    expanded = prompt_logits(checkpoint, prompt, FLOAT32, cpu_kernels="torch")
    kept = prompt_logits(checkpoint, prompt, FLOAT32, cpu_kernels="auto")

    assert (expanded - expected).abs().max() < 1e-4
    # The kernels keep the blocks' integers, and their scales in another way.
    assert (kept - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("num_rows", [1, 6, 7, 64])
def test_short_rows_are_expanded_as_each_by_itself(num_rows):
    generator = torch.Generator().manual_seed(2)
    shape = (num_rows, 3 * 34)
    blocks = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).numpy()
    blocks[:, 1::34] &= 0x3F  # Scales are small numbers.

    values = expand("Q8_0", blocks)

    assert values.shape == (num_rows, 3 * 32)
    for row, alone in zip(values, blocks, strict=True):
        assert (row == expand("Q8_0", alone[None])[0]).all()


def test_weights_of_other_types_are_expanded_to_bfloat16(tmp_path):
    checkpoint, tensors = converted(tmp_path, matrix_type=gguf.GGMLQuantizationType.Q5_1)

    stored = load_file(checkpoint / "model.safetensors")["lm_head.weight"]

    assert torch.equal(stored, torch.from_numpy(tensors["output.weight"]).bfloat16())


def test_unknown_architecture_is_told_with_the_supported(tmp_path):
    with pytest.raises(StartupError, match=r"'bert' is not supported; supported: llama, qwen2"):
        converted(tmp_path, architecture="bert")


def test_unknown_tensors_are_named(tmp_path):
    with pytest.raises(StartupError, match=r"rope_freqs\.weight \(1 in all\)"):
        converted(tmp_path, extra_tensors=("rope_freqs.weight",))


@pytest.mark.parametrize(
    ("num_heads", "words"),
    [
        (64, r"attn_q\.weight has 64 rows, which 64 heads can't share"),
        (48, r"facts make no configuration: .*hidden size \(64\).*heads \(48\)"),
    ],
)
def test_heads_that_do_not_fit_are_refused(tmp_path, num_heads, words):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, architecture="llama")
    name = b"llama.attention.head_count"
    heads, others = (name + struct.pack("<II", 4, number) for number in (4, num_heads))
    path.write_bytes(path.read_bytes().replace(heads, others))

    with pytest.raises(StartupError, match=words):
        convert(path, tmp_path / "checkpoint", tie=False, progress=silent)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a gguf file at all"])
def test_broken_file_is_told(tmp_path, content):
    (tmp_path / "broken.gguf").write_bytes(content)

    with pytest.raises(StartupError, match=r"broken\.gguf is no whole GGUF file"):
        convert(tmp_path / "broken.gguf", tmp_path, tie=False, progress=silent)


def test_cut_file_is_told_through_the_converters_process(tmp_path):
    write_gguf(tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "broken.gguf").write_bytes(content[: len(content) // 2])

    convert_in_fork = partial(convert_gguf, command=forked("antiphon_converter"))
    sources = Sources(hub=FakeHub(), convert=convert_in_fork)

    with pytest.raises(StartupError, match=r"broken\.gguf is no whole GGUF file"):
        resolve_model(
            str(tmp_path / "broken.gguf"),
            cache_dir=tmp_path / "cache",
            progress=silent,
            sources=sources,
        )
