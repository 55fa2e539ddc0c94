import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.text.output_channels import (
    Channel,
    ChannelSpec,
    OutputChannels,
    Part,
    ThinkingStart,
)
from antiphon_server.text.tool_formats import (
    HERMES,
    LLAMA,
    MISTRAL_LIST,
    MISTRAL_NAMED,
    TOOL_FORMATS,
    ToolFormat,
)

_ARGUMENTS = (
    "{}",
    '{"city": "Bern"}',
    '{"text": "a \\"}\\" b {", "deep": {"a": [{"b": "}"}]}}',
    '{"back": "\\\\"}',
    '{ "mark": "</tool_call>[TOOL_CALLS];" }',
)


def _written(tools: ToolFormat, calls) -> str:
    """Calls as a model of the family writes them."""
    wording = tools.wording
    texts = [wording.head_of(name) + arguments + wording.tail for name, arguments in calls]
    return wording.opener + wording.separator.join(texts) + wording.closer if calls else ""


def _read(spec: ChannelSpec, text: str, cuts=(1,)) -> tuple[list[Part], OutputChannels]:
    channels, parts, position, turn = OutputChannels(spec), [], 0, 0
    while position < len(text):
        size = cuts[turn % len(cuts)]
        parts += channels.push(text[position : position + size])
        position, turn = position + size, turn + 1
    return [*parts, *channels.finish()], channels


def _joined(parts, channel: Channel) -> str:
    return "".join(part.text for part in parts if part.channel is channel)


def _calls(parts) -> list[tuple[str, str]]:
    """The calls that are complete: names and arguments."""
    names, texts, complete = {}, {}, []
    for part in parts:
        if part.channel is not Channel.TOOL_CALL:
            continue
        if part.tool_name:
            assert part.call_index not in names
            names[part.call_index] = part.tool_name
        texts[part.call_index] = texts.get(part.call_index, "") + part.text
        if part.completes_call:
            complete.append(part.call_index)
    assert complete == list(range(len(complete)))
    return [(names[index], texts[index]) for index in complete]


_FORMATS = st.sampled_from(TOOL_FORMATS)
_CALLS = st.lists(st.tuples(st.sampled_from(["now", "find_it-2"]), st.sampled_from(_ARGUMENTS)))
_CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=6)
_WORDS = st.text(alphabet='ab <{"\n[T;', max_size=12)


@settings(deadline=None, max_examples=150)
@given(tools=_FORMATS, calls=_CALLS, words=st.tuples(_WORDS, _WORDS), cuts=_CUTS, data=st.data())
def test_an_output_comes_apart_the_same_however_it_is_cut(tools, calls, words, cuts, data):
    (said, thought), opened = words, data.draw(st.booleans())
    start = ThinkingStart.OPENED if opened else ThinkingStart.BY_MODEL
    spec = ChannelSpec(thinking=start, tools=tools)
    if not tools.wording.opener:
        said = said if not calls else ""  # A bare call begins the answer.
    text = ("" if opened else "<think>") + thought + "</think>\n\n" + said + _written(tools, calls)

    parts, channels = _read(spec, text, cuts)
    whole, _ = _read(spec, text, (len(text),))

    expected_answer = said.lstrip(" \t\r\n")
    if calls and tools.lead:
        expected_answer = expected_answer.removesuffix(tools.lead)
    assert _joined(parts, Channel.REASONING) == thought.lstrip(" \t\r\n")
    assert _joined(parts, Channel.CONTENT) == expected_answer
    assert _calls(parts) == calls == _calls(whole)
    assert channels.open_call_start is None
    assert not channels.is_broken


@settings(deadline=None, max_examples=100)
@given(tools=_FORMATS, calls=_CALLS.filter(bool), share=st.floats(0, 1), cuts=_CUTS)
def test_a_call_that_is_cut_short_is_never_complete(tools, calls, share, cuts):
    text = _written(tools, calls)
    size = int(share * len(text))

    parts, channels = _read(ChannelSpec(tools=tools), text[:size], cuts)

    done = _calls(parts)
    ends = [_written(tools, calls[: number + 1]) for number in range(len(calls))]
    closer = tools.wording.closer
    num_whole = sum(len(end.removesuffix(closer)) <= size for end in ends)
    assert done == calls[:num_whole]
    if channels.open_call_start is not None:
        assert done == calls[: len(done)]
        assert channels.open_call_start < size


@settings(deadline=None, max_examples=100)
@given(
    text=st.text(alphabet='ab<>/think tool_c{"nme:[TOLCAS]', max_size=40),
    tools=st.none() | _FORMATS,
    thinking=st.sampled_from(ThinkingStart),
    cuts=_CUTS,
)
def test_any_text_reads_the_same_however_it_is_cut(text, tools, thinking, cuts):
    spec = ChannelSpec(thinking=thinking, tools=tools)

    by_cuts, one = _read(spec, text, cuts)
    at_once, other = _read(spec, text, (max(1, len(text)),))

    for channel in Channel:
        assert _joined(by_cuts, channel) == _joined(at_once, channel)
    assert _calls(by_cuts) == _calls(at_once)
    assert (one.thinking_end, one.calls_start) == (other.thinking_end, other.calls_start)
    ends = [part.end for part in by_cuts]
    assert ends == sorted(ends)
    assert all(
        text[part.end - len(part.text) : part.end] == part.text
        for part in by_cuts
        if not part.completes_call
    )


@pytest.mark.parametrize("end", ["<", "</thi", "<tool_ca", "\n<tool", "a <b <"])
def test_a_beginning_of_a_marker_is_told_in_the_end(end):
    thinking = ChannelSpec(thinking=ThinkingStart.OPENED)
    answering = ChannelSpec(tools=HERMES)

    assert _joined(_read(thinking, "so " + end)[0], Channel.REASONING) == "so " + end
    assert _joined(_read(answering, "so " + end)[0], Channel.CONTENT) == "so " + end


def test_nothing_but_the_beginning_of_a_marker_is_held_back():
    channels = OutputChannels(ChannelSpec(tools=HERMES))

    told = [_joined(channels.push(text), Channel.CONTENT) for text in ("a", " <", "b", "<too", "t")]

    assert told == ["a", " ", "<b", "", "<toot"]


def test_an_output_may_end_inside_its_thinking():
    parts, channels = _read(ChannelSpec(thinking=ThinkingStart.OPENED), "so many ways </thin")

    assert _joined(parts, Channel.REASONING) == "so many ways </thin"
    assert _joined(parts, Channel.CONTENT) == ""
    assert channels.is_thinking


def test_a_model_need_not_think():
    parts, _ = _read(ChannelSpec(thinking=ThinkingStart.BY_MODEL), " <thing> here")

    assert _joined(parts, Channel.CONTENT) == " <thing> here"


def test_a_call_inside_the_thinking_is_none():
    text = "try <tool_call>{}</tool_call></think>done"

    parts, _ = _read(ChannelSpec(thinking=ThinkingStart.OPENED, tools=HERMES), text)

    assert _joined(parts, Channel.CONTENT) == "done"
    assert _calls(parts) == []


def test_arguments_come_as_they_are_written():
    channels = OutputChannels(ChannelSpec(tools=HERMES))
    channels.push('<tool_call>\n{"name": "now", "arguments": ')

    told = [_joined(channels.push(text), Channel.TOOL_CALL) for text in ('{"a', '": ', "1", "}}")]

    assert told == ['{"a', '": ', "1", "}"]


@pytest.mark.parametrize(
    ("tools", "text"),
    [
        (HERMES, '<tool_call>{"name":"now","arguments":{"a":1}}</tool_call>'),
        (HERMES, '<tool_call>\n\n{ "name" : "now" , "arguments" : {"a":1} }\n</tool_call>\n'),
        (LLAMA, '<|python_tag|>{"name": "now", "parameters": {"a":1}}'),
        (LLAMA, '\n{"name": "now", "parameters": {"a":1}}\n'),
        (MISTRAL_LIST, '[TOOL_CALLS][{"name":"now","arguments":{"a":1},"id":"abcdefghi"}]'),
        (MISTRAL_NAMED, '[TOOL_CALLS]now{"a":1}'),
        (MISTRAL_NAMED, '[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{"a":1}'),
    ],
)
def test_families_write_calls_in_several_ways(tools, text):
    for cuts in ((1,), (3, 2), (1000,)):
        assert _calls(_read(ChannelSpec(tools=tools), text, cuts)[0]) == [("now", '{"a":1}')]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" + "x" * 2000,
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call> and more',
        '<tool_call>\n{"name": "now", "arguments": {}' + "x" * 2000,
    ],
)
def test_what_should_be_a_call_and_is_none_is_noticed(text):
    _, channels = _read(ChannelSpec(tools=HERMES), text, (7,))

    assert channels.is_broken


def test_arguments_are_read_to_their_end_whatever_their_strings_say():
    for arguments in _ARGUMENTS:
        parts, _ = _read(ChannelSpec(tools=HERMES), _written(HERMES, [("now", arguments)]))
        ((_, read),) = _calls(parts)
        assert json.loads(read) == json.loads(arguments)


@pytest.mark.parametrize("tools", TOOL_FORMATS, ids=lambda tools: tools.name)
def test_what_is_cut_before_its_first_argument_is_no_text_where_calls_alone_may_be(
    tools: ToolFormat,
) -> None:
    written = _written(tools, [("now", "{}")])
    for size in range(1, written.index("{}")):
        parts, channels = _read(ChannelSpec(tools=tools, calls_only=True), written[:size])

        assert not parts
        assert channels.open_call_start == 0
    assert _calls(_read(ChannelSpec(tools=tools, calls_only=True), written)[0]) == [("now", "{}")]


def test_nothing_said_is_no_call_where_calls_alone_may_be() -> None:
    _, channels = _read(ChannelSpec(tools=TOOL_FORMATS[0], calls_only=True), "")

    assert channels.open_call_start is None
