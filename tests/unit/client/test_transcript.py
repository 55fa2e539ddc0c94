import pytest
from antiphon.v1 import session_pb2, types_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_client import TurnRestarted
from antiphon_client.transcript import Gap, Transcript
from support.breaking_sessions import Event, events_of, joinable, told


class Reader:
    """What somebody who reads the news has at last."""

    def __init__(self, cursor=None):
        self.transcript = Transcript("t", cursor)
        self.text = ""
        self.kinds = []
        self.token_ids = []
        self.num_restarts = 0

    def take(self, event):
        for news in self.transcript.take(event):
            if isinstance(news, TurnRestarted):
                self.num_restarts += 1
                assert self.text.startswith(news.kept_text)
                self.text = news.kept_text
            else:
                self.kinds.append(news.WhichOneof("event"))
                self.text += news.delta.text
                self.token_ids += news.delta.token_ids


def piece(text, first, last=None, *, epoch=1, token_ids=()):
    content = types_pb2.OUTPUT_CHANNEL_CONTENT
    return Event(
        turn_id="t",
        epoch=epoch,
        first_sequence=first,
        sequence=last or first,
        delta=types_pb2.Delta(channel=content, text=text, token_ids=token_ids),
    )


def test_a_joined_event_that_begins_inside_of_what_is_known_is_cut_to_its_rest():
    reader = Reader()
    for event in (piece("ab", 1), piece("cd", 2), piece("ab", 1), piece("cdef", 2, 3)):
        reader.take(event)

    assert reader.text == "abcdef"
    assert reader.transcript.cursor.sequence == 3


def test_tokens_that_were_reported_are_not_reported_again():
    reader = Reader()
    reader.take(piece("ab", 1, token_ids=[1, 2]))
    reader.take(piece("abc", 1, 2, epoch=2, token_ids=[1, 2, 3]))

    assert (reader.text, reader.token_ids) == ("abc", [1, 2, 3])


def prompt_parts(cuts, *, epoch, logprobs=True):
    """A prompt of 12 tokens, told in parts that end at `cuts`."""
    told = [types_pb2.PositionLogprobs(top=[types_pb2.TokenLogprob(token_id=i)]) for i in range(12)]
    for sequence, (first, end) in enumerate(zip([0, *cuts], cuts, strict=False), start=1):
        part = types_pb2.PromptPart(
            first_position=first,
            token_ids=range(first, end),
            logprobs=told[first:end] if logprobs else (),
        )
        yield Event(
            turn_id="t", epoch=epoch, first_sequence=sequence, sequence=sequence, prompt_part=part
        )


@given(
    first=st.sets(st.integers(1, 11)),
    again=st.sets(st.integers(1, 11)),
    num_first=st.integers(0, 12),
)
def test_a_prompt_that_is_told_again_in_other_parts_is_read_once(first, again, num_first):
    transcript = Transcript("t")
    told = [*prompt_parts([*sorted(first), 12], epoch=1)][:num_first]
    told += prompt_parts([*sorted(again), 12], epoch=2)

    news = [event.prompt_part for event in told for event in transcript.take(event)]

    assert [token_id for part in news for token_id in part.token_ids] == list(range(12))
    assert [entry.top[0].token_id for part in news for entry in part.logprobs] == list(range(12))
    starts = [part.first_position for part in news]
    assert starts == [part.token_ids[0] for part in news]


def test_other_tokens_behind_the_same_text_are_another_answer():
    reader = Reader()
    reader.take(piece("ab", 1, token_ids=[1, 2]))
    reader.take(piece("ab", 1, epoch=2, token_ids=[3]))

    assert reader.num_restarts == 1
    assert reader.text == "ab"


def test_an_answer_that_ends_earlier_after_a_crash_takes_the_rest_back():
    reader = Reader()
    reader.take(piece("abcd", 1))
    reader.take(piece("ab", 1, epoch=2))
    ended = session_pb2.TurnCompleted()
    reader.take(Event(turn_id="t", epoch=2, first_sequence=2, sequence=2, completed=ended))

    assert (reader.text, reader.num_restarts) == ("ab", 1)
    assert reader.kinds[-1] == "completed"


def test_tool_calls_and_the_beginning_are_told_once_whatever_is_repeated():
    call = types_pb2.ToolCall(call_id="c", tool_name="f", arguments_json="{}")
    events = [*events_of("t", [])[:2], Event(turn_id="t", tool_call=call)]
    reader = Reader()
    for epoch in (1, 2, 2):
        for number in range(3):
            reader.take(told("t", events, epoch, number, number))

    assert reader.kinds == ["accepted", "started", "tool_call"]


def test_a_reset_behind_a_cursor_of_somebody_elses_reading_takes_all_back():
    reader = Reader(session_pb2.TurnCursor(turn_id="t", epoch=1, sequence=3))
    reader.take(Event(turn_id="t", epoch=2, reset=session_pb2.TurnReset()))
    reader.take(piece("whole", 1, epoch=2))

    assert (reader.text, reader.num_restarts) == ("whole", 1)


def test_events_that_are_missing_are_noticed():
    reader = Reader()
    reader.take(piece("a", 1))
    with pytest.raises(Gap, match="events 2 to 3 of the turn t"):
        reader.take(piece("d", 4))


pieces = st.lists(st.text("ab", min_size=1, max_size=3), max_size=8)
steps = st.lists(
    st.tuples(st.sampled_from(["tell", "tell", "tell", "again", "resume", "crash"]), st.integers()),
    max_size=40,
)


@settings(deadline=None, max_examples=120)
@given(steps=steps, first=pieces, more=st.lists(pieces, max_size=4), may_differ=st.booleans())
def test_whatever_is_told_again_is_read_once(steps, first, more, may_differ):
    """Several readers on a server tell a turn in any order, from any place, in any epoch."""
    reader, epoch, answer = Reader(), 1, first
    events = events_of("t", answer)
    places = [0]
    num_crashes = 0

    def tell(number):
        """One of the server's readers tells the next event, or a few, in one."""
        index = number % len(places)
        if places[index] == len(events):
            return
        last = joinable(events, places[index], 1 + number % 3)
        reader.take(told("t", events, epoch, places[index], last))
        places[index] = last + 1

    for kind, number in steps:
        if reader.transcript.ended:
            break
        if kind == "tell":
            tell(number)
        elif kind == "again" and len(places) < 4:
            places.append(0)
        elif kind == "resume":
            places = [reader.transcript.cursor.sequence]
        elif kind == "crash":
            num_crashes += 1
            answer = more[number % len(more)] if may_differ and more else ["".join(answer)]
            events, epoch, places = events_of("t", answer), epoch + 1, [0]
            reader.take(Event(turn_id="t", epoch=epoch, reset=session_pb2.TurnReset()))
    places = places[:1]
    while not reader.transcript.ended:
        tell(0)

    assert reader.text == "".join(answer)
    assert reader.kinds.count("completed") == reader.kinds.count("accepted") == 1
    assert reader.num_restarts <= (num_crashes if may_differ else 0)
