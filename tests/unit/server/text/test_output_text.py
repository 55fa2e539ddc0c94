import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.text.detokenizer import MAX_HELD_RUN_BYTES
from antiphon_server.text.output_text import OutputText, TextSpec
from support.output_reading import read_output

TEXTS = (
    "crème brûlée, déjà",
    "東京、こんにちは",
    "🛶🪁",
    "👨‍👩‍👧 fine",
    "ขอบคุณครับ",
    "🇨🇭 here",
    "e\u0301 or é",
    "bell\u0007 and \u0001",
)


def _output(pair, *, stops=(), include=False, show=False, prompt=()) -> OutputText:
    spec = TextSpec(
        prompt_tail=prompt,
        stop_strings=stops,
        include_stop_string=include,
        show_special_tokens=show,
    )
    return OutputText(pair.ours, spec)


def _text(pieces) -> str:
    return "".join(piece.text for piece in pieces)


def _ids(pair, text: str) -> list[int]:
    return pair.ours.encode(text, add_special_tokens=False, allow_special_tokens=False)


@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=4))
@settings(max_examples=50)
def test_plain_text_is_the_same_whichever_way_it_is_pushed(pairs, data, cuts):
    pair = pairs[data.draw(st.sampled_from(sorted(pairs)))]
    ids = data.draw(st.lists(st.integers(0, pair.ours.vocabulary_size - 1), max_size=40))
    plain, pieces, position, turn = _output(pair), [], 0, 0

    while position < len(ids):
        size = cuts[turn % len(cuts)]
        pieces.append(plain.push_plain(ids[position : position + size]))
        position, turn = position + size, turn + 1
    rest = plain.finish()

    usual = read_output(_output(pair), ids, cuts)
    assert "".join(pieces) + _text(rest) == _text(usual)
    assert pieces == [piece.text for piece in usual[: len(pieces)]]
    assert rest[-1].num_tokens == usual[-1].num_tokens


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("cuts", [(1,), (3,), (1000,)])
def test_no_piece_shows_half_a_character(pair, text, cuts):
    shown = unicodedata.normalize("NFC", text) if pair.name == "byte_level" else text

    pieces = read_output(_output(pair), _ids(pair, text), cuts)

    assert _text(pieces) == shown
    assert not any("\ufffd" in piece.text for piece in pieces)
    assert sum(piece.num_tokens for piece in pieces) == len(_ids(pair, text))


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_pieces_join_to_the_full_decode_of_transformers(pairs, data):
    pair = pairs[data.draw(st.sampled_from(sorted(pairs)))]
    size = pair.ours.vocabulary_size
    # Rich in byte tokens, so that characters are whole, cut and broken in all ways.
    token = st.integers(0, size - 1) | st.integers(0, 300)
    ids = data.draw(st.lists(token, max_size=MAX_HELD_RUN_BYTES - 2))
    cuts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    show = data.draw(st.booleans())

    pieces = read_output(_output(pair, show=show), ids, cuts)

    assert _text(pieces) == pair.reference.decode(ids, skip_special_tokens=not show)
    assert _text(pieces) == pair.ours.decode(ids, skip_special_tokens=not show)
    assert sum(piece.num_tokens for piece in pieces) == len(ids)


@settings(deadline=None, max_examples=30)
@given(
    data=st.lists(st.integers(0, 255), max_size=120),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_long_runs_of_bytes_do_not_depend_on_how_they_are_cut(pairs, data, cuts):
    pair = pairs["byte_fallback"]
    first = pair.reference.convert_tokens_to_ids("<0x00>")
    ids = [first + byte for byte in data]

    assert _text(read_output(_output(pair), ids, cuts)) == pair.ours.decode(
        ids, skip_special_tokens=True
    )


def test_a_long_run_of_bytes_is_shown_before_it_ends(byte_fallback):
    text = "ขอบคุณครับขอบคุณครับ"
    ids = byte_fallback.ours.plain.encode_after_text(text)
    output = _output(byte_fallback)

    pieces = [piece for i in ids for piece in output.push([i])]

    assert _text(pieces) == text
    assert pieces[MAX_HELD_RUN_BYTES - 1].text == text[: MAX_HELD_RUN_BYTES // 3]


def test_a_character_that_stays_incomplete_is_told_as_broken_at_the_end(pair):
    ids = _ids(pair, "fine 東")[:-1]

    pieces = read_output(_output(pair), ids)

    assert _text(pieces) == pair.reference.decode(ids)
    assert "\ufffd" in pieces[-1].text
    assert not any("\ufffd" in piece.text for piece in pieces[:-1])


@pytest.mark.parametrize("show", [True, False])
@pytest.mark.parametrize(
    "script",
    [
        ["hello", "<|im_end|>"],
        ["ok ", "<tool_call>", '{"name": "f"}', "</tool_call>", "<|im_end|>"],
        ["<|im_start|>", "a", "<|endoftext|>", "b"],
    ],
)
def test_special_tokens_show_only_on_request(pair, script, show):
    ids = []
    for part in script:
        known = pair.reference.get_added_vocab().get(part)
        ids += _ids(pair, part) if known is None else [known]

    pieces = read_output(_output(pair, show=show), ids)

    assert _text(pieces) == pair.reference.decode(ids, skip_special_tokens=not show)
    assert ("<|im_" in _text(pieces)) == (show and any("<|im_" in part for part in script))


def test_an_end_token_that_is_not_pushed_is_told_with_the_last_piece(pair):
    ids = _ids(pair, "so be it")
    output = _output(pair)

    (told,) = output.push(ids)
    (last,) = output.finish(hidden_last=True)

    assert last.text == ""
    assert told.num_tokens + last.num_tokens == len(ids) + 1


def test_tokens_without_text_are_told_with_the_next_text(byte_level):
    hidden = byte_level.reference.convert_tokens_to_ids("<|im_start|>")
    ids = _ids(byte_level, "東")
    output = _output(byte_level)

    pieces = [piece for i in [hidden, *ids, hidden] for piece in output.push([i])]
    (last,) = output.finish()

    assert [piece.num_tokens for piece in pieces] == [0] * len(ids) + [1 + len(ids), 0]
    assert (last.text, last.num_tokens) == ("", 1)


def test_the_leading_blank_is_dropped_only_where_a_text_begins(byte_fallback):
    ids = _ids(byte_fallback, "hello")
    begin = byte_fallback.reference.bos_token_id

    behind_nothing = _text(read_output(_output(byte_fallback, prompt=[begin]), ids))
    behind_text = _text(read_output(_output(byte_fallback, prompt=[begin, *ids]), ids))

    assert behind_nothing == "hello"
    assert behind_text == " hello"
    assert byte_fallback.reference.decode([*ids, *ids]) == "hello hello"


STOPS = (
    ("one two three QRSTUVW four", ["QRSTUVW"]),
    ("xyzxyw xyzv tail", ["xyzv", "xyzw"]),
    ("FINISHhere", ["FINISH"]),
    ("nothing of the kind", ["@@"]),
    ("a東京b", ["京"]),
    ("aab aabaabaaac", ["aabaaac", "baaa"]),
    ("the cathedral", ["cat", "cathedral"]),
    ("the cathedral", ["athe", "cathe"]),
)


def _earliest(text: str, stops) -> tuple[int, str] | None:
    """The stop that ends first, the longest of those; as (start, stop)."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return None
    end, _, stop = min(found)
    return end - len(stop), stop


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("cuts", [(1,), (2, 1), (1000,)])
@pytest.mark.parametrize(("text", "stops"), STOPS)
def test_a_stop_string_never_leaks(pair, text, stops, cuts, include):
    ids = _ids(pair, text)
    expected = _earliest(text, stops)

    pieces = read_output(_output(pair, stops=stops, include=include), ids, cuts)

    if expected is None:
        assert _text(pieces) == text
        assert pieces[-1].stop is None
        assert sum(piece.num_tokens for piece in pieces) == len(ids)
        return
    start, stop = expected
    hit = pieces[-1].stop
    assert _text(pieces) == text[: start + len(stop) * include]
    assert hit.text == stop
    assert stop in pair.ours.decode(ids[: hit.keep_tokens], skip_special_tokens=True)
    assert stop not in pair.ours.decode(ids[: hit.keep_tokens - 1], skip_special_tokens=True)
    assert sum(piece.num_tokens for piece in pieces) == hit.keep_tokens


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_stop_strings_agree_with_a_plain_search_however_ids_are_cut(pairs, data):
    pair = pairs[data.draw(st.sampled_from(sorted(pairs)))]
    text = data.draw(st.text(alphabet="ab東<", max_size=24))
    stops = data.draw(st.lists(st.text(alphabet="ab東<", min_size=1, max_size=5), max_size=4))
    include = data.draw(st.booleans())
    cuts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    ids = _ids(pair, text)
    expected = _earliest(text, stops)

    pieces = read_output(_output(pair, stops=stops, include=include), ids, cuts)

    if expected is None:
        assert _text(pieces) == text
        assert pieces[-1].stop is None
    else:
        start, stop = expected
        assert _text(pieces) == text[: start + len(stop) * include]
        assert pieces[-1].stop.text == stop
        whole = read_output(_output(pair, stops=stops, include=include), ids, (1000,))
        assert pieces[-1].stop == whole[-1].stop


@pytest.mark.parametrize(
    ("text", "stops"),
    [("EINS ZWEI DR", ["DREI"]), ("value <", ["<think>"]), ("a < b <t", ["<tool>"])],
)
@pytest.mark.parametrize("hidden_last", [True, False])
def test_what_is_held_back_comes_out_at_the_end(pair, text, stops, hidden_last):
    ids = _ids(pair, text)
    output = _output(pair, stops=stops)

    before = [piece for i in ids for piece in output.push([i])]
    (last,) = output.finish(hidden_last=hidden_last)

    assert _text(before) + last.text == text
    assert last.text != ""
    assert sum(p.num_tokens for p in [*before, last]) == len(ids) + hidden_last


def test_only_the_beginning_of_a_stop_string_is_held_back(byte_level):
    output = _output(byte_level, stops=["DREI"])

    (first,) = output.push(_ids(byte_level, "EINS D"))
    (second,) = output.push(_ids(byte_level, "ZWEI"))

    assert first.text == "EINS "
    assert second.text == "DZWEI"


def test_a_stop_string_in_the_prompt_has_no_effect(pair):
    prompt, ids = _ids(pair, "never say HALT"), _ids(pair, "all right")

    pieces = read_output(_output(pair, stops=["HALT"], prompt=prompt), ids)

    assert _text(pieces).strip() == "all right"
    assert pieces[-1].stop is None


def test_a_stop_string_is_found_across_a_hidden_token(byte_level):
    hidden = byte_level.reference.convert_tokens_to_ids("<|im_start|>")
    ids = [*_ids(byte_level, "say HA"), hidden, *_ids(byte_level, "LT now")]

    pieces = read_output(_output(byte_level, stops=["HALT"]), ids)

    assert _text(pieces) == "say "
    assert pieces[-1].stop.text == "HALT"


def test_a_broken_character_at_the_end_can_complete_a_stop_string(byte_level):
    ids = _ids(byte_level, "x東")[:-1]

    pieces = read_output(_output(byte_level, stops=["x\ufffd"]), ids)

    assert _text(pieces) == ""
    assert pieces[-1].stop.keep_tokens == len(ids)
