"""Reading GGUF files, beside the readers of the gguf package and of transformers."""

import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from transformers import AutoConfig

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.gguf_config import config_of
from antiphon_engine.checkpoint.gguf_file import Scalar, read_gguf
from support.tiny_gguf import VOCABULARY_SIZE, write_gguf


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_all_is_read_as_the_gguf_package_reads_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, matrix_type=gguf.GGMLQuantizationType[kind])
    expected = gguf.GGUFReader(path)

    file = read_gguf(path)

    lists = [name for name, field in expected.fields.items() if len(field.types) > 1]
    assert file.lengths == {name: len(expected.fields[name].data) for name in lists}
    assert file.facts == {
        name: field.contents()
        for name, field in expected.fields.items()
        if name not in lists and not name.startswith("GGUF.")
    }
    assert [tensor.name for tensor in file.tensors] == [each.name for each in expected.tensors]
    for tensor, wanted in zip(file.tensors, expected.tensors, strict=True):
        assert tensor.kind is wanted.tensor_type
        assert tensor.num_values == wanted.n_elements
        assert tensor.data.dtype == wanted.data.dtype
        assert np.array_equal(tensor.data, wanted.data)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_configuration_is_what_transformers_makes_of_it(tmp_path: Path, architecture: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", architecture=architecture)
    expected = AutoConfig.from_pretrained(tmp_path, gguf_file="tiny.gguf").to_dict()

    made = config_of(read_gguf(tmp_path / "tiny.gguf"), architecture).to_dict()

    assert made | {"_name_or_path": ""} == expected | {"_name_or_path": ""}


def test_words_are_counted_where_no_fact_says_how_many_there_are(tmp_path: Path) -> None:
    path = tmp_path / "words.gguf"
    write_gguf(path)
    file = read_gguf(path)
    facts = {name: fact for name, fact in file.facts.items() if name != "qwen2.vocab_size"}
    lengths = {"tokenizer.ggml.tokens": 3}

    assert config_of(replace(file, facts=facts, lengths=lengths), "qwen2").vocab_size == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_count": None}, r"lacks qwen2\.block_count, which must be a whole number"),
        ({"attention.head_count": None}, r"lacks qwen2\.attention\.head_count,"),
        ({"attention.layer_norm_rms_epsilon": None}, r"lacks qwen2\.attention\.layer_norm_rms"),
        ({"attention.layer_norm_rms_epsilon": -1.0}, r"is -1\.0, but must be a number from 0"),
        ({"embedding_length": "64"}, r"embedding_length is '64', but must be a whole number"),
        ({"context_length": 0}, r"context_length is 0, but must be a whole number"),
        ({"block_count": 1 << 32}, r"block_count is 4294967296, but must be less than its \d+ te"),
        ({"rope.scaling.type": "yarn"}, r"rope\.scaling\.type is 'yarn': not supported"),
        ({"attention.sliding_window": 512}, r"sliding_window is 512: not supported"),
    ],
)
def test_facts_that_cannot_be_are_refused_by_name(
    tmp_path: Path, changes: Mapping[str, Scalar | None], words: str
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    file = read_gguf(tmp_path / "tiny.gguf")
    changed = {f"qwen2.{name}": fact for name, fact in changes.items()}
    facts = {name: fact for name, fact in {**file.facts, **changed}.items() if fact is not None}

    with pytest.raises(StartupError, match=words):
        config_of(replace(file, facts=facts), "qwen2")


def test_layers_that_differ_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    file = read_gguf(tmp_path / "tiny.gguf")

    with pytest.raises(StartupError, match=r"attention\.head_count_kv is a list"):
        config_of(replace(file, lengths={"qwen2.attention.head_count_kv": 2}), "qwen2")


def test_heads_have_keys_of_their_own_where_no_fact_says_otherwise(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    file = read_gguf(tmp_path / "tiny.gguf")
    name = "qwen2.attention.head_count_kv"
    facts = {each: fact for each, fact in file.facts.items() if each != name}

    assert config_of(replace(file, facts=facts), "qwen2").num_key_value_heads == 4


def test_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    content = (tmp_path / "tiny.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    sizes = np.random.default_rng(3).integers(1, len(content) - 1000, 200)

    for size in sizes:
        cut.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"."):
            read_gguf(cut)


MOST = (1 << 64) - 1


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def nested_lists(depth: int) -> bytes:
    return text(b"a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth


def tensor(sizes: list[int], *, kind: int = 0, offset: int = 0) -> bytes:
    form = f"<I{len(sizes)}QIQ"
    return text(b"t") + struct.pack(form, len(sizes), *sizes, kind, offset)


@pytest.mark.parametrize(
    ("num_tensors", "num_facts", "rest", "words"),
    [
        (0, 1, text(b"a") + struct.pack("<IIQ", 9, 0, MOST), "it ends within its list"),
        (0, 1, text(b"a") + struct.pack("<IIQQ", 9, 8, 2, MOST), "it ends within its list"),
        (0, 1, text(b"a") + struct.pack("<IQ", 8, MOST), "it ends within its list"),
        (0, 1, struct.pack("<Q", 1 << 63), "it ends within its list"),
        (0, 1, nested_lists(5000), "more than 8 deep"),
        (1, 0, tensor([]), "t has 0 dimensions"),
        (1, 0, tensor([], kind=8), "t has 0 dimensions"),
        (1, 0, tensor([4, 0]), "t has no values"),
        (1, 0, tensor([1 << 62, 1 << 62]), "it ends within t"),
        (1, 0, tensor([1 << 63, 2]), "it ends within t"),
        (1, 0, tensor([4], offset=MOST), "it ends within t"),
        (1, 0, tensor([33], kind=8), "not a multiple of Q8_0 block size"),
        (1, 0, tensor([4], kind=99), "99 is not a valid"),
    ],
)
def test_sizes_that_are_lies_are_refused(
    tmp_path: Path, num_tensors: int, num_facts: int, rest: bytes, words: str
) -> None:
    path = tmp_path / "lies.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_facts) + rest + bytes(64))

    with pytest.raises(ValueError, match=words):
        read_gguf(path)


def test_file_with_bytes_changed_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    content = (tmp_path / "tiny.gguf").read_bytes()
    head = content[: content.index(b"blk.1.ffn_down.weight") + 64]
    changed = tmp_path / "changed.gguf"
    random = np.random.default_rng(5)

    for place in random.integers(0, len(head) - 8, 100):
        lie = random.choice([bytes(8), b"\xff" * 8, struct.pack("<Q", 1 << 62)])
        changed.write_bytes(content[:place] + lie + content[place + 8 :])
        with suppress(ValueError):
            read_gguf(changed)


def test_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"blk.1.attn_norm.weight", b"blk.0.attn_norm.weight"))

    with pytest.raises(ValueError, match="two tensors of one name"):
        read_gguf(path)


def test_other_versions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    content = bytearray(path.read_bytes())
    content[4] = 9
    path.write_bytes(content)

    with pytest.raises(ValueError, match="its version is 9"):
        read_gguf(path)


def test_vocabulary_of_the_tiny_file_is_its_tokenizers(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")

    assert read_gguf(tmp_path / "tiny.gguf").lengths["tokenizer.ggml.tokens"] == VOCABULARY_SIZE
