import json
import shutil
import threading
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

from antiphon_engine.api.errors import StartupError
from antiphon_server.text.tokenizer import Tokenizer

TEXTS = (
    "plain words, and 12 numbers",
    "  two blanks in front\n\nand lines ",
    "brücke, naïve 日本語 🛶 \u0e2a\u0e27\u0e31\u0e2a",
    "<|im_start|>user\nhi<|im_end|> <think>x</think>",
    "",
)


def _edit_settings(directory: Path, **changes: object) -> None:
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("text", TEXTS)
def test_special_tokens_are_honoured_as_transformers_does(pair, text):
    ids = pair.ours.encode(text, add_special_tokens=True, allow_special_tokens=True)

    assert ids == pair.reference.encode(text)


@pytest.mark.parametrize("text", TEXTS)
def test_disallowed_special_tokens_stay_visible_text(pair, text):
    ids = pair.ours.encode(text, add_special_tokens=False, allow_special_tokens=False)

    assert not set(ids) & set(pair.reference.added_tokens_decoder)
    shown = pair.ours.decode(ids, skip_special_tokens=True)
    assert shown == pair.reference.decode(ids)
    assert shown.strip() == text.strip()


def test_a_text_without_special_tokens_is_encoded_the_same_either_way(pair):
    text = "What is the capital of the country? a < b 日本"

    either = [
        pair.ours.encode(text, add_special_tokens=True, allow_special_tokens=allowed)
        for allowed in (True, False)
    ]

    assert either[0] == either[1]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_long_text_is_encoded_while_other_threads_run(pair, allowed):
    text = "The harbour lay quiet while the morning ferry turned. " * 8000
    encode = threading.Thread(
        target=lambda: pair.ours.encode(text, add_special_tokens=True, allow_special_tokens=allowed)
    )
    num_rounds = 0

    encode.start()
    while encode.is_alive():
        time.sleep(0.001)
        num_rounds += 1

    assert num_rounds > 20


def test_settings_decide_what_goes_around_a_text(byte_fallback, tmp_path):
    directory = shutil.copytree(byte_fallback.directory, tmp_path / "tokenizer")
    _edit_settings(directory, add_bos_token=True, add_eos_token=True)
    tokenizer = Tokenizer.load(directory)

    for allowed in (True, False):
        ids = tokenizer.encode("hello", add_special_tokens=True, allow_special_tokens=allowed)

        assert [tokenizer.token_bytes(i) for i in (ids[0], ids[-1])] == [b"<s>", b"</s>"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == "hello"


def test_token_bytes_are_exact(pair):
    text = "brücke 🛶"
    ids = pair.ours.encode(text, add_special_tokens=False, allow_special_tokens=False)

    assert b"".join(map(pair.ours.token_bytes, ids)).removeprefix(b" ") == text.encode()


def test_ids_beyond_the_tokenizer_show_nothing(pair):
    beyond = pair.ours.vocabulary_size
    ids = pair.ours.encode("hello", add_special_tokens=False, allow_special_tokens=False)

    assert pair.ours.token_bytes(beyond) == b""
    assert pair.ours.token_bytes(-1) == b""
    assert pair.ours.decode([beyond, *ids, beyond + 7], skip_special_tokens=False) == "hello"
    assert pair.reference.convert_ids_to_tokens(beyond - 1) is not None


def test_end_and_special_ids_come_from_the_files(byte_level):
    tokenizer, reference = byte_level.ours, byte_level.reference

    assert tokenizer.end_ids == {reference.eos_token_id}
    assert tokenizer.special_ids == {
        token_id for token_id, token in reference.added_tokens_decoder.items() if token.special
    }
    assert len(tokenizer.special_ids) == 3
    assert len(tokenizer.control_tokens.ids) == 7


def test_a_named_token_counts_as_special_where_only_the_settings_say_so(byte_level, tmp_path):
    directory = shutil.copytree(byte_level.directory, tmp_path / "tokenizer")
    _edit_settings(directory, eos_token={"content": "<tool_call>", "special": True})
    tokenizer = Tokenizer.load(directory)

    (end_id,) = tokenizer.end_ids

    assert tokenizer.token_bytes(end_id) == b"<tool_call>"
    assert end_id in tokenizer.special_ids


def test_tokens_that_only_the_settings_declare_are_added(byte_level, tmp_path):
    directory = shutil.copytree(byte_level.directory, tmp_path / "tokenizer")
    new_id = byte_level.ours.vocabulary_size
    _edit_settings(
        directory, added_tokens_decoder={str(new_id): {"content": "<|pause|>", "special": True}}
    )
    tokenizer = Tokenizer.load(directory)

    assert tokenizer.vocabulary_size == new_id + 1
    assert new_id in tokenizer.special_ids
    text = "a<|pause|>"
    assert tokenizer.encode(text, add_special_tokens=False, allow_special_tokens=True)[-1] == new_id


def test_a_declared_token_under_another_id_is_refused(byte_level, tmp_path):
    directory = shutil.copytree(byte_level.directory, tmp_path / "tokenizer")
    _edit_settings(
        directory, added_tokens_decoder={"5": {"content": "<|im_end|>", "special": True}}
    )

    with pytest.raises(StartupError, match="the id 5"):
        Tokenizer.load(directory)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{]", "broken"),
        ("tokenizer.json", "{}", "broken"),
        ("tokenizer_config.json", "{]", "not valid JSON"),
        ("tokenizer_config.json", "[]", "no JSON object"),
    ],
)
def test_absent_and_broken_files_fail_at_start_in_one_line(
    byte_level, tmp_path, name, content, words
):
    directory = shutil.copytree(byte_level.directory, tmp_path / "tokenizer")
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_text(content)

    with pytest.raises(StartupError, match=words) as raised:
        Tokenizer.load(directory)

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.BPEDecoder(), None])
def test_decoders_that_are_not_served_are_refused(tmp_path, decoder):
    tokenizer = RawTokenizer(models.BPE({"a": 0}, []))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    with pytest.raises(StartupError, match="decoder"):
        Tokenizer.load(tmp_path)


def test_a_vocabulary_that_holds_a_control_token_as_a_word_cannot_be_made_to_write_it(tmp_path):
    words = [("<unk>", 0.0), ("</s>", -1.0), ("\u2581", -2.0), ("a", -2.0), ("s", -3.0)]
    words += [(character, -9.0) for character in "</>"]
    tokenizer = RawTokenizer(models.Unigram(words, unk_id=0))
    tokenizer.decoder = decoders.Metaspace("\u2581", prepend_scheme="never")
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)

    ids = loaded.encode("a</s>a</s>", add_special_tokens=False, allow_special_tokens=False)

    assert loaded.encode("</s>", add_special_tokens=False, allow_special_tokens=True) == [1]
    assert 1 not in ids
    assert loaded.decode(ids, skip_special_tokens=True) == "a</s>a</s>"
