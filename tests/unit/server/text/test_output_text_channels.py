from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.text.output_channels import Channel, ChannelSpec, ThinkingStart
from antiphon_server.text.output_text import OutputText, Piece, TextSpec, join_pieces
from antiphon_server.text.tool_formats import HERMES
from support.output_reading import read_output

_THINKS = ChannelSpec(thinking=ThinkingStart.OPENED, tools=HERMES)
_CALL = '<tool_call>\n{"name": "now", "arguments": {"a": "halt"}}\n</tool_call>'


def _ids(pair, text: str) -> list[int]:
    """As a model writes it: with the markers as the tokens that they are."""
    return pair.ours.encode(text, add_special_tokens=False, allow_special_tokens=True)


def _output(pair, *, stops=(), channels=_THINKS, show=False) -> OutputText:
    spec = TextSpec(
        prompt_tail=[1],
        stop_strings=stops,
        include_stop_string=False,
        show_special_tokens=show,
        channels=channels,
    )
    return OutputText(pair.ours, spec)


def _text(pieces, channel: Channel = Channel.CONTENT) -> str:
    return "".join(piece.text for piece in pieces if piece.channel is channel)


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_tokens_stay_beside_their_text_in_every_channel(pairs, data):
    pair = pairs[data.draw(st.sampled_from(sorted(pairs)))]
    said = data.draw(st.sampled_from(["", "so 東 be it", "a <b", "halt a while"]))
    ids = _ids(pair, "why <not 東</think>\n\n" + said + _CALL)
    cuts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    stops = data.draw(st.sampled_from([[], ["halt"], ["zzz", "東 be"]]))

    pieces = read_output(_output(pair, stops=stops), ids, cuts)
    at_once = read_output(_output(pair, stops=stops), ids, (1000,))

    for channel in Channel:
        assert _text(pieces, channel) == _text(at_once, channel)
    num_tokens = sum(piece.num_tokens for piece in pieces)
    stop = pieces[-1].stop
    assert num_tokens == (stop.keep_tokens if stop else len(ids))
    assert num_tokens == sum(piece.num_tokens for piece in at_once)


def test_stop_strings_are_looked_for_in_the_answer_alone(pair):
    ids = _ids(pair, "halt here</think>\n\ngo on" + _CALL)

    pieces = read_output(_output(pair, stops=["halt"]), ids)

    assert pieces[-1].stop is None
    assert _text(pieces, Channel.TOOL_CALL) == '{"a": "halt"}'
    assert any(piece.completes_call for piece in pieces)


def test_a_stop_string_in_the_answer_ends_it_behind_the_thinking(pair):
    ids = _ids(pair, "halt here</think>\n\nsay halt now")

    pieces = read_output(_output(pair, stops=["halt"]), ids, (2,))

    assert _text(pieces) == "say "
    assert _text(pieces, Channel.REASONING).strip() == "halt here"
    keep = pieces[-1].stop.keep_tokens
    assert "say halt" in pair.ours.decode(ids[:keep], skip_special_tokens=True)
    assert "say halt" not in pair.ours.decode(ids[: keep - 1], skip_special_tokens=True)
    assert sum(piece.num_tokens for piece in pieces) == keep


def test_what_may_be_a_stop_string_is_let_go_before_a_call(pair):
    ids = _ids(pair, "x</think>\n\nsay ha" + _CALL)

    pieces = read_output(_output(pair, stops=["halt"]), ids)

    assert _text(pieces) == "say ha"
    assert pieces[-1].stop is None


def test_thinking_counts_its_marker(pair):
    thought = _ids(pair, "x y z</think>")
    output = _output(pair)

    read_output(output, thought + _ids(pair, "\n\nanswer"))

    assert output.num_thinking_tokens == len(thought)


def test_an_output_that_only_thinks_counts_as_such(pair):
    ids = _ids(pair, "x y z")
    output = _output(pair)

    read_output(output, ids)

    assert output.num_thinking_tokens == len(ids)


def test_markers_that_are_special_tokens_count_though_they_do_not_show(byte_level):
    hidden = byte_level.ours.control_tokens.by_text["<|im_start|>"].token_id
    assert hidden in byte_level.ours.special_ids
    spec = ChannelSpec(thinking=ThinkingStart.OPENED)
    marked = ChannelSpec(
        thinking=ThinkingStart.OPENED,
        reasoning=type(spec.reasoning)(opener="<|im_end|>", closer="<|im_start|>"),
    )
    ids = [*_ids(byte_level, "why"), hidden, *_ids(byte_level, "so")]

    pieces = read_output(_output(byte_level, channels=marked), ids)

    assert _text(pieces, Channel.REASONING) == "why"
    assert _text(pieces) == "so"


def test_neighbours_of_a_part_join_and_calls_stay_apart():
    call = {"channel": Channel.TOOL_CALL, "call_index": 0}
    pieces = [
        Piece(text="", num_tokens=1),
        Piece(text="a", num_tokens=0),
        Piece(text="b", num_tokens=2),
        Piece(text="{", num_tokens=1, tool_name="now", **call),
        Piece(text="}", num_tokens=1, **call),
        Piece(text="", num_tokens=0, completes_call=True, **call),
        Piece(text="", num_tokens=3),
    ]

    joined = join_pieces(pieces)

    assert [(p.text, p.num_tokens, p.completes_call) for p in joined] == [
        ("ab", 3, False),
        ("{}", 5, True),
    ]
    assert joined[1].tool_name == "now"
