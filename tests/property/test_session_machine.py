"""Sessions beside a naive model: histories, ids, states and events agree whatever happens."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_KEEP_TOKENS,
    HISTORY_POLICY_RERENDER,
    AppendItems,
    HistoryPoint,
    Session,
    StartTurn,
    Turn,
    TurnEvent,
    UpdateSessionRequest,
)
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED
from google.protobuf.field_mask_pb2 import FieldMask
from hypothesis import HealthCheck, Phase, settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.records import SessionKey
from support.fake_engine import FACTS
from support.fake_renderer import REFUSED
from support.session_bench import KEY, start_turn, text_of
from support.session_driver import SessionDriver
from support.session_model import CONTINUABLE, ModelSession, ModelTurn
from support.session_rows import user

MAX_TOKENS = 4
MAX_SESSIONS = 3
TEXTS = st.sampled_from(["a", "bc", "def", "ghij"])


class SessionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = SessionDriver()
        self.sessions: list[ModelSession] = []
        self.num_ids = 0

    def teardown(self) -> None:
        self.driver.close()

    def _new_id(self) -> str:
        self.num_ids += 1
        return f"t{self.num_ids}"

    def _draw_session(self, data: st.DataObject) -> ModelSession:
        return data.draw(st.sampled_from(self.sessions))

    def _draw_place(self, data: st.DataObject, session: ModelSession) -> str:
        return data.draw(st.sampled_from(["", *(turn.turn_id for turn in session.history)]))

    @initialize(
        instructions=st.sampled_from(["", "be"]),
        policy=st.sampled_from([HISTORY_POLICY_KEEP_TOKENS, HISTORY_POLICY_RERENDER]),
    )
    def create(self, instructions: str, policy: int) -> None:
        self.sessions.append(ModelSession(KEY, policy, instructions))
        create = self.driver.bench.create(instructions=instructions, history_policy=policy)
        self.driver.run(create)

    # What a session does by itself.

    @rule(text=TEXTS, data=st.data())
    def append(self, text: str, data: st.DataObject) -> None:
        session, turn_id = self._draw_session(data), self._new_id()
        request = AppendItems(turn_id=turn_id, items=[user(text)])

        told = self.driver.append(session.key, request)
        assert [event.WhichOneof("event") for event in told] == ["accepted", "completed"]
        done = ModelTurn(turn_id=turn_id, request=request, state=Turn.STATE_COMPLETED)
        session.turns.append(done)

    @rule(text=TEXTS, data=st.data())
    def generate(self, text: str, data: st.DataObject) -> None:
        self._generate(self._draw_session(data), start_turn(text, max_tokens=MAX_TOKENS))

    @precondition(lambda self: any(session.has_pending for session in self.sessions))
    @rule()
    def answer_what_was_appended(self) -> None:
        session = next(session for session in self.sessions if session.has_pending)
        self._generate(session, start_turn("", max_tokens=MAX_TOKENS))

    @rule(text=TEXTS, data=st.data())
    def answer_from_before(self, text: str, data: st.DataObject) -> None:
        session = self._draw_session(data)
        place = self._draw_place(data, session)
        start = start_turn(text, max_tokens=MAX_TOKENS, rewind_to=session.point(place))
        self._generate(session, start, rewound_to=place)

    @rule(data=st.data())
    def go_on_with_an_answer(self, data: st.DataObject) -> None:
        session = self._draw_session(data)
        start = start_turn("", max_tokens=MAX_TOKENS, continue_answer=True)
        self._generate(session, start)

    def _generate(
        self, session: ModelSession, start: StartTurn, *, rewound_to: str | None = None
    ) -> None:
        start.turn_id = self._new_id()
        history = session.history if rewound_to is None else session.up_to(rewound_to)
        expected = self._expected_failure(session, history, start)
        (events,) = self.driver.follow(session.key, start)
        if expected is not None:
            assert events[-1].failed.reason == expected
        else:
            assert events[-1].HasField("completed")
            assert self.driver.requests[-1].prompt == session.prompt(history, start)
        self._note(session, start, events, rewound_to=rewound_to)

    def _expected_failure(
        self, session: ModelSession, history: Sequence[ModelTurn], start: StartTurn
    ) -> str | None:
        if start.continue_answer and not (history and history[-1].finish in CONTINUABLE):
            return "INVALID_FIELD"
        num_tokens = len(session.prompt(history, start))
        if any(turn.generates for turn in history) and num_tokens >= FACTS.context_tokens:
            return "SESSION_FULL"
        if num_tokens + MAX_TOKENS > FACTS.context_tokens:
            return "CONTEXT_LENGTH_EXCEEDED"
        return None

    def _note(
        self,
        session: ModelSession,
        start: StartTurn,
        events: list[TurnEvent],
        *,
        rewound_to: str | None = None,
    ) -> None:
        """Takes what was told of a generated turn into the model."""
        turn = ModelTurn(turn_id=start.turn_id, request=start, state=Turn.STATE_FAILED)
        if events[-1].HasField("completed"):
            if rewound_to is not None:
                session.rewind(rewound_to)
            completed = events[-1].completed
            ids = tuple(self.driver.requests[-1].outputs[0].token_ids)
            assert completed.usage.output_tokens == len(ids)
            assert completed.kept_sequence == events[-1].sequence
            assert completed.etag == self._told(session).etag
            turn = replace(
                turn,
                state=Turn.STATE_COMPLETED,
                output_ids=ids,
                text=text_of(events),
                finish=completed.finish_reason,
            )
        session.turns.append(turn)

    @rule(texts=st.lists(TEXTS, min_size=2, max_size=3), data=st.data())
    def generate_several_at_once(self, texts: list[str], data: st.DataObject) -> None:
        session = self._draw_session(data)
        starts = [start_turn(text, self._new_id(), max_tokens=MAX_TOKENS) for text in texts]
        num_before = len(self.driver.requests)

        told = self.driver.follow(session.key, *starts)
        requests = iter(self.driver.requests[num_before:])
        for start, events in zip(starts, told, strict=True):
            turn = ModelTurn(turn_id=start.turn_id, request=start, state=Turn.STATE_FAILED)
            if events[-1].HasField("completed"):
                request = next(requests)
                assert request.prompt == session.prompt(session.history, start)
                turn = replace(
                    turn,
                    state=Turn.STATE_COMPLETED,
                    output_ids=tuple(request.outputs[0].token_ids),
                    text=text_of(events),
                    finish=events[-1].completed.finish_reason,
                )
            session.turns.append(turn)

    # What stops turns.

    @rule(
        text=TEXTS,
        num_steps=st.integers(0, 3),
        how=st.sampled_from(["keep", "drop", "fail"]),
        rewinds=st.booleans(),
        data=st.data(),
    )
    def stop_in_the_middle(
        self, text: str, num_steps: int, how: str, rewinds: bool, data: st.DataObject
    ) -> None:
        session = self._draw_session(data)
        place = self._draw_place(data, session) if rewinds else None
        start = start_turn(text, self._new_id(), max_tokens=MAX_TOKENS)
        if place is not None:
            start.rewind_to.CopyFrom(session.point(place))
        history = session.history if place is None else session.up_to(place)
        if self._expected_failure(session, history, start):
            return
        events = self.driver.stop(session.key, start, num_steps=num_steps, how=how)
        kept = how == "keep" and num_steps > 0
        assert events[-1].HasField("completed" if kept else "failed")
        self._note(session, start, events, rewound_to=place)

    @rule(text=TEXTS, num_steps=st.integers(0, 3), num_reads=st.integers(0, 5), data=st.data())
    def interrupt(self, text: str, num_steps: int, num_reads: int, data: st.DataObject) -> None:
        session = self._draw_session(data)
        start = start_turn(text, self._new_id(), max_tokens=MAX_TOKENS)
        if self._expected_failure(session, session.history, start):
            return
        after = start_turn("a", self._new_id(), max_tokens=MAX_TOKENS)
        after.if_busy = StartTurn.IF_BUSY_INTERRUPT
        num_before = len(self.driver.requests)
        first, second, delivered = self.driver.interrupt(
            session.key, start, after, steps=num_steps, reads=num_reads
        )
        ids = self.driver.requests[num_before].outputs[0].token_ids
        self._note_interrupted(session, start, first, ids, delivered=delivered)
        if self._expected_failure(session, session.history, after) is None:
            assert self.driver.requests[-1].prompt == session.prompt(session.history, after)
            assert second[-1].HasField("completed")
        self._note(session, after, second)

    def _note_interrupted(
        self,
        session: ModelSession,
        start: StartTurn,
        events: list[TurnEvent],
        ids: list[int],
        *,
        delivered: int,
    ) -> None:
        """Works out from single events and whole decodes what stays, and takes it in."""
        row = self.driver.run(self.driver.bench.store.read_turn(session.key, start.turn_id))
        assert row is not None
        kept, text = tuple(row.tokens.output_ids), text_of(events)
        turn = ModelTurn(turn_id=start.turn_id, request=start, state=Turn.STATE_FAILED)
        completed = events[-1].completed
        if events[-1].HasField("completed") and completed.finish_reason != FINISH_REASON_CANCELLED:
            assert kept == tuple(ids)
        else:
            said = [self.driver.decode(ids[:num]) for num in range(len(ids) + 1)]
            texts = [text_of(e for e in events if e.sequence <= n) for n in range(delivered + 1)]
            could_keep = [text for text in texts if text and text in said]
            text = could_keep[-1] if could_keep else ""
            assert events[-1].HasField("completed") == bool(could_keep)
            assert kept == tuple(ids[: len(kept)])
            assert said[len(kept)] == text
            assert not could_keep or texts[completed.kept_sequence] == text
        if events[-1].HasField("completed"):
            turn = replace(
                turn,
                state=Turn.STATE_COMPLETED,
                output_ids=kept,
                text=text,
                finish=completed.finish_reason,
            )
        session.turns.append(turn)

    @rule(data=st.data())
    def be_refused_by_the_template(self, data: st.DataObject) -> None:
        session = self._draw_session(data)
        start = start_turn(REFUSED, self._new_id())
        (events,) = self.driver.follow(session.key, start)
        assert events[-1].failed.reason == "TEMPLATE_ERROR"
        self._note(session, start, events)

    @precondition(lambda self: any(session.history for session in self.sessions))
    @rule()
    def expect_a_head_that_has_moved(self) -> None:
        session = next(session for session in self.sessions if session.history)
        start = start_turn("a", self._new_id(), expected_head=HistoryPoint(start={}))
        (events,) = self.driver.follow(session.key, start)
        assert events[-1].failed.reason == "STALE_HEAD"
        self._note(session, start, events)

    # What changes sessions as wholes.

    @rule(instructions=st.sampled_from(["", "be", "behave"]), data=st.data())
    def change_instructions(self, instructions: str, data: st.DataObject) -> None:
        session = self._draw_session(data)

        request = UpdateSessionRequest(
            session=Session(name=session.key.name, instructions=instructions),
            update_mask=FieldMask(paths=["instructions"]),
        )
        self.driver.run(self.driver.bench.registry.update("", request))
        session.instructions = instructions

    @precondition(lambda self: len(self.sessions) < MAX_SESSIONS)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        session = self._draw_session(data)
        place = self._draw_place(data, session)
        name = session.key.turn_name(place) if place else ""
        place = place or (session.head.turn_id if session.head else "")
        key = SessionKey("", f"fork{len(self.sessions)}")
        values = {"name": session.key.name, "session_id": key.session_id, "turn": name}
        self.driver.run(self.driver.bench.fork(**values))
        self.sessions.append(session.fork(key, place))

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        session = self._draw_session(data)
        place = self._draw_place(data, session)
        values = {"name": session.key.name, "to": session.point(place)}
        self.driver.run(self.driver.bench.rewind(**values))
        session.rewind(place)

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @rule(text=TEXTS, num_steps=st.integers(0, 2), data=st.data())
    def restart_in_the_middle(self, text: str, num_steps: int, data: st.DataObject) -> None:
        session = self._draw_session(data)
        start = start_turn(text, self._new_id(), max_tokens=MAX_TOKENS)
        if self._expected_failure(session, session.history, start):
            return

        self.driver.leave(session.key, start, num_steps=num_steps)
        (events,) = self.driver.follow(session.key, start)
        assert events[-1].HasField("completed")
        self._note(session, start, events)

    # What must not change anything.

    @precondition(lambda self: any(session.turns for session in self.sessions))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([each for each in self.sessions if each.turns]))
        turn = data.draw(st.sampled_from(session.turns))
        if not isinstance(turn.request, StartTurn):
            return
        num_before = len(self.driver.requests)

        (events,) = self.driver.follow(session.key, turn.request)

        assert events[-1].HasField("failed") == (turn.state == Turn.STATE_FAILED)
        assert turn.state == Turn.STATE_FAILED or text_of(events) == turn.text
        assert len(self.driver.requests) == num_before

    @precondition(lambda self: any(session.turns for session in self.sessions))
    @rule(data=st.data())
    def take_an_id_twice(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from([each for each in self.sessions if each.turns]))
        turn = data.draw(st.sampled_from(session.turns))
        other = start_turn("other content", turn.turn_id)
        with pytest.raises(AntiphonError) as taken:
            self.driver.follow(session.key, other)
        assert taken.value.reason is ErrorReason.ID_TAKEN

    # What always holds.

    @invariant()
    def the_sessions_are_as_the_model_says(self) -> None:
        for session in self.sessions:
            self._check_session(session)

    def _check_session(self, session: ModelSession) -> None:
        told = self._told(session)
        history = session.history
        assert told.num_turns == len(history)
        assert told.head_turn == (session.key.turn_name(session.head.turn_id) if history else "")
        if not any(turn.generates for turn in history):
            assert told.residency.context_tokens == 0
        listed = self.driver.turns(session.key)
        assert [turn.name for turn in listed] == [
            session.key.turn_name(turn.turn_id) for turn in session.turns
        ]
        parent = ""
        for turn, expected in zip(listed, session.turns, strict=True):
            assert turn.state == expected.state
            assert list(turn.input) == list(expected.request.items)
            if expected.state != Turn.STATE_FAILED:
                assert turn.output.text == expected.text
            if expected.state == Turn.STATE_COMPLETED:
                assert turn.parent_turn == parent
                parent = turn.name

    @invariant()
    def nothing_is_left_in_the_engine(self) -> None:
        engine = self.driver.bench.engine
        assert engine.num_running == engine.num_waiting == 0

    def _told(self, session: ModelSession) -> Session:
        return self.driver.run(self.driver.bench.session(session.key))


def test_sessions_do_as_the_model_over_random_lives(scale: int) -> None:
    stateful.run_state_machine_as_test(
        SessionMachine,
        settings=settings(
            max_examples=12 * scale,
            stateful_step_count=15,
            deadline=None,
            derandomize=True,
            # Shrinking a run with a real store takes minutes; a failing run is short as it is.
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
