"""A turn's log beside a plain list of single events: whoever reads gets what is left, once."""

import asyncio
from dataclasses import dataclass, field

from antiphon.v1.session_pb2 import TurnAccepted, TurnCompleted, TurnCursor, TurnEvent
from antiphon.v1.types_pb2 import (
    OUTPUT_CHANNEL_CONTENT,
    OUTPUT_CHANNEL_REASONING,
    Delta,
    GenerationStarted,
    PositionLogprobs,
    PromptPart,
    TokenLogprob,
)
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from antiphon_server.sessions.event_log import EventLog, EventReader, ReaderSpec

EPOCH = 3
MAX_BACKLOG_BYTES = 150
TEXTS = st.sampled_from(["", "a", "bc", "é", "日本", "x" * 40])
CHANNELS = st.sampled_from([OUTPUT_CHANNEL_CONTENT, OUTPUT_CHANNEL_REASONING])
READER_KINDS = st.sampled_from([(True, True), (True, False), (False, True), (False, False)])
"""Whether a reader drives, and whether it acknowledges."""

Part = tuple[int, str, tuple[int, ...], tuple[float, ...]]


@dataclass(slots=True)
class Told:
    """One event as the plain list keeps it."""

    kind: str
    part: Part | None = None


@dataclass(slots=True)
class Reading:
    """A reader, and what it has got."""

    reader: EventReader
    place: int
    drives: bool
    acknowledges: bool
    expects_reset: bool
    acknowledged: int
    got: list[TurnEvent] = field(default_factory=list)

    @property
    def settled(self) -> int:
        return self.acknowledged if self.acknowledges else self.place


class Tap:
    """A valve that notes how it stands."""

    def __init__(self) -> None:
        self.is_held = False

    def hold(self) -> None:
        assert not self.is_held
        self.is_held = True

    def release(self) -> None:
        assert self.is_held
        self.is_held = False


def logprobs_of(token_ids: list[int]) -> list[PositionLogprobs]:
    return [
        PositionLogprobs(chosen=TokenLogprob(token_id=token_id, logprob=-token_id / 8))
        for token_id in token_ids
    ]


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tap = Tap()
        self.log = EventLog("t", EPOCH, max_backlog_bytes=MAX_BACKLOG_BYTES, valve=self.tap)
        self.told: list[Told] = []
        self.readings: list[Reading] = []
        self.settled = 0
        self.num_settled_calls = 0
        self.log.on_settled = self._note_settled

    def _note_settled(self) -> None:
        self.num_settled_calls += 1

    def _append(self, event: TurnEvent, told: Told) -> None:
        self.told.append(told)
        self.log.append(event)
        self._settle()

    @initialize()
    def begin(self) -> None:
        self._append(TurnEvent(accepted=TurnAccepted(frame_id="f")), Told("accepted"))

    @property
    def ended(self) -> bool:
        return bool(self.told) and self.told[-1].kind == "completed"

    @precondition(lambda self: not self.ended)
    @rule(
        text=TEXTS,
        token_ids=st.lists(st.integers(0, 900), max_size=3),
        has_logprobs=st.booleans(),
        channel=CHANNELS,
    )
    def say(self, text: str, token_ids: list[int], has_logprobs: bool, channel: int) -> None:
        logprobs = logprobs_of(token_ids) if has_logprobs else []
        delta = Delta(channel=channel, text=text, token_ids=token_ids, logprobs=logprobs)
        part = (channel, text, tuple(token_ids), tuple(p.chosen.logprob for p in logprobs))
        told = Told("delta", part)
        self._append(TurnEvent(delta=delta), told)

    @precondition(lambda self: not self.ended)
    @rule(text=TEXTS)
    def say_without_tokens(self, text: str) -> None:
        delta = Delta(channel=OUTPUT_CHANNEL_CONTENT, text=text)
        part = (OUTPUT_CHANNEL_CONTENT, text, (), ())
        told = Told("delta", part)
        self._append(TurnEvent(delta=delta), told)

    @precondition(lambda self: not self.ended)
    @rule()
    def tell_something_else(self) -> None:
        self._append(TurnEvent(started=GenerationStarted(prompt_tokens=4)), Told("started"))
        self._append(TurnEvent(prompt_part=PromptPart(token_ids=[1, 2])), Told("prompt_part"))

    @precondition(lambda self: not self.ended)
    @rule()
    def end(self) -> None:
        self._append(TurnEvent(completed=TurnCompleted()), Told("completed"))

    @precondition(lambda self: len(self.readings) < 5)
    @rule(data=st.data(), kind=READER_KINDS, good=st.booleans())
    def open(self, data: st.DataObject, kind: tuple[bool, bool], good: bool) -> None:
        drives, acknowledges = kind
        place = data.draw(st.integers(0, len(self.told) + (0 if good else 3)))
        epoch = EPOCH if good else data.draw(st.integers(EPOCH - 1, EPOCH + 1))
        served = place == 0 or (epoch == EPOCH and place <= len(self.told))
        cursor = TurnCursor(turn_id="t", epoch=epoch, sequence=place)
        spec = ReaderSpec(cursor=cursor, drives=drives, acknowledges=acknowledges)
        reader = self.log.open_reader(asyncio.Event(), spec)
        place = place if served else 0
        reading = Reading(reader, place, drives, acknowledges, not served, place)
        self.readings.append(reading)
        assert reader.wake.is_set() == reader.has_news
        self._settle()

    @precondition(lambda self: self.readings)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        self._read(data.draw(st.sampled_from(self.readings)))

    def _read(self, reading: Reading) -> bool:
        event = reading.reader.read()
        if reading.expects_reset:
            assert event is not None
            assert event.HasField("reset")
            assert (event.turn_id, event.epoch, event.sequence) == ("t", EPOCH, 0)
            reading.expects_reset = False
            return True
        if event is None:
            assert reading.place == len(self.told)
            return False
        assert (event.turn_id, event.epoch) == ("t", EPOCH)
        assert event.first_sequence == reading.place + 1
        assert event.sequence >= event.first_sequence
        covered = self.told[reading.place : event.sequence]
        if event.HasField("delta"):
            assert {told.kind for told in covered} == {"delta"}
            parts = [told.part for told in covered if told.part]
            assert {part[0] for part in parts} == {event.delta.channel}
            assert event.delta.text == "".join(part[1] for part in parts)
            assert tuple(event.delta.token_ids) == sum((part[2] for part in parts), ())
            told_logprobs = tuple(p.chosen.logprob for p in event.delta.logprobs)
            assert told_logprobs == sum((part[3] for part in parts), ())
        else:
            assert [told.kind for told in covered] == [event.WhichOneof("event")]
        reading.place = event.sequence
        reading.got.append(event)
        self._settle()
        return True

    @precondition(lambda self: self.readings)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        reading = data.draw(st.sampled_from(self.readings))
        sequence = data.draw(st.integers(0, reading.place))
        reading.reader.acknowledge(sequence)
        reading.acknowledged = max(reading.acknowledged, sequence)
        self._settle()

    @precondition(lambda self: any(reading.acknowledges for reading in self.readings))
    @rule(data=st.data())
    def stop_acknowledging(self, data: st.DataObject) -> None:
        counting = [reading for reading in self.readings if reading.acknowledges]
        reading = data.draw(st.sampled_from(counting))
        reading.reader.stop_acknowledging()
        reading.acknowledges = False
        self._settle()

    @precondition(lambda self: self.readings)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        reading = data.draw(st.sampled_from(self.readings))
        reading.reader.close()
        self.readings.remove(reading)
        self._settle()

    def _settle(self) -> None:
        places = [reading.settled for reading in self.readings if reading.drives]
        self.settled = max(places) if places else self.settled

    @invariant()
    def the_log_knows_where_its_drivers_are(self) -> None:
        delivered = self.log.delivered
        told = self.told[: self.settled]
        parts = [each.part for each in told if each.part]
        text = "".join(part[1] for part in parts)
        assert delivered.sequence == self.settled
        assert delivered.num_characters == len(text)
        assert self.log.settled == (self.ended and self.settled == len(self.told))
        assert bool(self.num_settled_calls) >= self.log.settled

    @invariant()
    def a_turn_is_held_only_for_a_driver_that_is_far_behind(self) -> None:
        is_driven = any(reading.drives for reading in self.readings)
        assert self.log.driven == is_driven
        if self.ended:
            # Nothing more comes, so there is nothing to hold.
            return
        behind = self.log.size_bytes - self.log.bytes_through(self.settled)
        if not is_driven or behind <= MAX_BACKLOG_BYTES // 2:
            assert not self.tap.is_held
        elif behind > MAX_BACKLOG_BYTES:
            assert self.tap.is_held

    @invariant()
    def the_output_is_what_the_deltas_say(self) -> None:
        output = self.log.output()
        parts = [told.part for told in self.told if told.part]
        text = "".join(part[1] for part in parts if part[0] == OUTPUT_CHANNEL_CONTENT)
        reasoning = "".join(part[1] for part in parts if part[0] == OUTPUT_CHANNEL_REASONING)
        assert (output.text, output.reasoning) == (text, reasoning)
        assert tuple(output.token_ids) == sum((part[2] for part in parts), ())
        assert self.log.last_sequence == len(self.told)

    def teardown(self) -> None:
        for reading in self.readings:
            while self._read(reading):
                pass
            assert reading.place == len(self.told)
            assert reading.reader.finished == self.ended


def test_log_and_its_readers_do_as_the_model_over_random_lives(scale: int) -> None:
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=30 * scale,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            # A failing run is short enough as it is, and shrinking takes minutes.
            phases=[Phase.explicit, Phase.generate],
        ),
    )
