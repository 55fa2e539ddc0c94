"""Reading GGUF files, beside the readers of the gguf package and of transformers."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from transformers import AutoConfig

from antiphon_engine.checkpoint.gguf_config import config_of
from antiphon_engine.checkpoint.gguf_file import read_gguf
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
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_token_list(["a", "b", "c"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()

    assert config_of(read_gguf(path), "qwen2").vocab_size == 3


def test_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    content = (tmp_path / "tiny.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    sizes = np.random.default_rng(3).integers(1, len(content) - 1000, 200)

    for size in sizes:
        cut.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"."):
            read_gguf(cut)


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
