"""A session beside a naive model of one: history, ids, states and events agree whatever happens."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from antiphon.v1.session_pb2 import HistoryPoint, ListTurnsRequest, Turn, TurnEvent
from antiphon.v1.types_pb2 import Item
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.listing import list_turns
from antiphon_server.sessions.turn_request import Frame, read_start_turn
from support.fake_engine import FACTS
from support.fake_renderer import REFUSED, FakeRenderer
from support.served_models import TextSide, load_text_side
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    eventually,
    session_bench,
    start_turn,
    text_of,
)
from support.session_rows import user
from support.tiny_tokenizers import save_byte_level_tokenizer

T = TypeVar("T")

MAX_TOKENS = 4
TEXTS = st.sampled_from(["a", "bc", "def", "ghij"])


@lru_cache(maxsize=1)
def text_side() -> TextSide:
    with tempfile.TemporaryDirectory() as directory:
        return load_text_side(save_byte_level_tokenizer(Path(directory) / "tokenizer"))


@dataclass
class ModelTurn:
    turn_id: str
    text: str
    state: int
    output_ids: list[int] | None = None
    """None: an append, or not in the history."""
    told_text: str = ""


@dataclass
class Model:
    """What a session should be, worked out anew from its whole past each time."""

    turns: list[ModelTurn] = field(default_factory=list)
    instructions: str = ""
    renderer: FakeRenderer = field(default_factory=FakeRenderer)

    @property
    def history(self) -> list[ModelTurn]:
        return [turn for turn in self.turns if turn.state == Turn.STATE_COMPLETED]

    @property
    def pending(self) -> list[Item]:
        items: list[Item] = []
        for turn in self.history:
            items = [*items, user(turn.text)] if turn.output_ids is None else []
        return items

    def prompt(self, text: str) -> list[int]:
        """The prompt of the next turn."""
        ids: list[int] = []
        items: list[Item] = []
        asked = ModelTurn("", text, Turn.STATE_RUNNING, output_ids=[])
        for turn in [*self.history, asked]:
            items += [user(turn.text)] if turn.text else []
            if turn.output_ids is not None:
                if ids:
                    ids += self.renderer.render_continuation(items, kept_tail=ids).token_ids
                else:
                    ids += self.renderer.render_conversation(
                        items, instructions=self.instructions
                    ).token_ids
                ids += turn.output_ids
                items = []
        return ids


class SessionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp())
        self.spec = BenchSpec(text=text_side(), path=self.directory / "sessions.db")
        self.model = Model()
        self.num_ids = 0
        self.context = None
        self.bench: SessionBench = self._open()

    def _run(self, work: Awaitable[T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(20):
                return await work

        return self.runner.run(bounded())

    def _open(self) -> SessionBench:
        self.context = session_bench(self.spec)
        return self._run(self.context.__aenter__())

    def _close(self) -> None:
        assert self.context is not None
        self._run(self.context.__aexit__(None, None, None))

    def teardown(self) -> None:
        self._close()
        self.runner.close()
        shutil.rmtree(self.directory)

    def _new_id(self) -> str:
        self.num_ids += 1
        return f"t{self.num_ids}"

    def _expected_failure(self, prompt: list[int]) -> str | None:
        answered = any(turn.output_ids is not None for turn in self.model.history)
        if answered and len(prompt) >= FACTS.context_tokens:
            return "SESSION_FULL"
        if len(prompt) + MAX_TOKENS > FACTS.context_tokens:
            return "CONTEXT_LENGTH_EXCEEDED"
        return None

    def _note(self, turn_id: str, text: str, events: list[TurnEvent]) -> None:
        """Takes what was told of a generated turn into the model."""
        if events[-1].HasField("completed"):
            ids = list(self.bench.engine.requests[-1].outputs[0].token_ids)
            turn = ModelTurn(turn_id, text, Turn.STATE_COMPLETED, ids, text_of(events))
            assert events[-1].completed.usage.output_tokens == len(ids)
        else:
            turn = ModelTurn(turn_id, text, Turn.STATE_FAILED)
        self.model.turns.append(turn)

    @initialize(instructions=st.sampled_from(["", "be"]))
    def create(self, instructions: str) -> None:
        self.model.instructions = instructions
        self._run(self.bench.create(instructions=instructions))

    @rule(text=TEXTS)
    def append(self, text: str) -> None:
        turn_id = self._new_id()
        events = self._run(self.bench.append(text, turn_id))
        assert [event.WhichOneof("event") for event in events] == ["accepted", "completed"]
        self.model.turns.append(ModelTurn(turn_id, text, Turn.STATE_COMPLETED))

    @rule(text=TEXTS)
    def generate(self, text: str) -> None:
        self._generate(text)

    @precondition(lambda self: self.model.pending)
    @rule()
    def answer_what_was_appended(self) -> None:
        self._generate("")

    def _generate(self, text: str) -> None:
        prompt, turn_id = self.model.prompt(text), self._new_id()
        expected = self._expected_failure(prompt)
        events = self._run(self.bench.run(text, turn_id, max_tokens=MAX_TOKENS))
        if expected:
            assert events[-1].failed.reason == expected
        else:
            assert self.bench.prompts[-1] == prompt
            assert events[-1].HasField("completed")
        self._note(turn_id, text, events)

    @rule(texts=st.lists(TEXTS, min_size=2, max_size=3))
    def generate_several_at_once(self, texts: list[str]) -> None:
        turn_ids = [self._new_id() for _ in texts]
        num_before = len(self.bench.engine.requests)

        async def run_all() -> list[list[TurnEvent]]:
            runs = [
                self.bench.run(text, turn_id, max_tokens=MAX_TOKENS)
                for text, turn_id in zip(texts, turn_ids, strict=True)
            ]
            return await asyncio.gather(*runs)

        told = self._run(run_all())
        requests = iter(self.bench.engine.requests[num_before:])
        for turn_id, text, events in zip(turn_ids, texts, told, strict=True):
            turn = ModelTurn(turn_id, text, Turn.STATE_FAILED)
            if events[-1].HasField("completed"):
                request = next(requests)
                assert request.prompt == self.model.prompt(text)
                ids = list(request.outputs[0].token_ids)
                turn = ModelTurn(turn_id, text, Turn.STATE_COMPLETED, ids, text_of(events))
            self.model.turns.append(turn)

    @rule(text=TEXTS, num_steps=st.integers(0, 3), how=st.sampled_from(["keep", "drop", "fail"]))
    def stop_in_the_middle(self, text: str, num_steps: int, how: str) -> None:
        if self._expected_failure(self.model.prompt(text)):
            return
        turn_id = self._new_id()
        events = self._run(self._stopped(text, turn_id, num_steps, how))
        kept = how == "keep" and num_steps > 0
        assert events[-1].HasField("completed" if kept else "failed")
        self._note(turn_id, text, events)

    async def _stopped(self, text: str, turn_id: str, num_steps: int, how: str) -> list[TurnEvent]:
        engine = self.bench.engine
        engine.hold()
        num_before = len(engine.requests)
        run = asyncio.create_task(self.bench.run(text, turn_id, max_tokens=MAX_TOKENS))
        await eventually(lambda: len(engine.requests) > num_before)
        engine.step(num_steps)
        if how == "fail":
            engine.fail_all(AntiphonError(ErrorReason.ENGINE_DOWN, "it died"))
        else:
            async with self.bench.registry.use(KEY) as session:
                await session.cancel_turn(turn_id, discards=how == "drop")
        events = await run
        engine.release()
        return events

    @rule()
    def be_refused_by_the_template(self) -> None:
        turn_id = self._new_id()
        events = self._run(self.bench.run(REFUSED, turn_id))
        assert events[-1].failed.reason == "TEMPLATE_ERROR"
        self.model.turns.append(ModelTurn(turn_id, REFUSED, Turn.STATE_FAILED))

    @rule(instructions=st.sampled_from(["", "be", "behave"]))
    def change_instructions(self, instructions: str) -> None:
        async def change() -> None:
            async with self.bench.registry.use(KEY) as session:
                await session.update(
                    lambda values: setattr(values, "instructions", instructions),
                    etag="",
                    receipt=None,
                )

        self._run(change())
        self.model.instructions = instructions

    @precondition(lambda self: any(turn.output_ids for turn in self.model.history))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        answered = [turn for turn in self.model.history if turn.output_ids]
        turn = data.draw(st.sampled_from(answered))
        num_before = len(self.bench.engine.requests)

        events = self._run(self.bench.run(turn.text, turn.turn_id, max_tokens=MAX_TOKENS))

        assert text_of(events) == turn.told_text
        assert len(self.bench.engine.requests) == num_before

    @precondition(lambda self: self.model.turns)
    @rule(data=st.data())
    def take_an_id_twice(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(self.model.turns))
        reason = self._refusal(lambda: self.bench.run("other content", turn.turn_id))
        assert reason is ErrorReason.ID_TAKEN

    @precondition(lambda self: self.model.history)
    @rule()
    def expect_a_head_that_has_moved(self) -> None:
        turn_id = self._new_id()
        start = start_turn("a", turn_id, expected_head=HistoryPoint(start={}))
        events = self._run(self.bench.follow(start))
        assert events[-1].failed.reason == "STALE_HEAD"
        self.model.turns.append(ModelTurn(turn_id, "a", Turn.STATE_FAILED))

    @rule()
    def restart(self) -> None:
        self._close()
        self.bench = self._open()

    @rule(text=TEXTS, num_steps=st.integers(0, 2))
    def restart_in_the_middle(self, text: str, num_steps: int) -> None:
        if self._expected_failure(self.model.prompt(text)):
            return
        turn_id = self._new_id()

        async def begin() -> None:
            engine = self.bench.engine
            engine.hold()
            num_before = len(engine.requests)
            async with self.bench.registry.use(KEY) as session:
                start = start_turn(text, turn_id, max_tokens=MAX_TOKENS)
                await session.start_turn(read_start_turn(start, Frame(path="turn")))
            await eventually(lambda: len(engine.requests) > num_before)
            engine.step(num_steps)

        self._run(begin())
        self.restart()
        self.model.turns.append(ModelTurn(turn_id, text, Turn.STATE_FAILED))

    def _refusal(self, attempt: Callable[[], Awaitable[object]]) -> ErrorReason | None:
        try:
            self._run(attempt())
        except AntiphonError as error:
            return error.reason
        return None

    @invariant()
    def the_session_is_as_the_model_says(self) -> None:
        session = self._run(self.bench.session())
        history = self.model.history
        assert session.num_turns == len(history)
        assert session.head_turn == (KEY.turn_name(history[-1].turn_id) if history else "")
        listed = self._run(self._list_all())
        assert [turn.name for turn in listed] == [
            KEY.turn_name(turn.turn_id) for turn in self.model.turns
        ]
        parent = ""
        for turn, expected in zip(listed, self.model.turns, strict=True):
            assert turn.state == expected.state
            told = [item.message.text for item in turn.input]
            assert told == ([expected.text] if expected.text else [])
            if expected.state == Turn.STATE_COMPLETED:
                assert turn.output.text == expected.told_text
                assert turn.parent_turn == parent
                parent = turn.name

    @invariant()
    def the_context_is_what_was_fed_and_generated(self) -> None:
        answered = [turn for turn in self.model.history if turn.output_ids is not None]
        residency = self._run(self.bench.session()).residency
        if not answered:
            assert residency.context_tokens == 0

    @invariant()
    def nothing_is_left_in_the_engine(self) -> None:
        assert self.bench.engine.num_running == self.bench.engine.num_waiting == 0

    async def _list_all(self) -> list[Turn]:
        turns: list[Turn] = []
        token = ""
        while True:
            request = ListTurnsRequest(
                session=KEY.name, page_size=5, page_token=token, show_all=True
            )
            page = await list_turns(self.bench.registry, "", request)
            turns += page.turns
            token = page.next_page_token
            if not token:
                return turns


SessionMachine.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    # Shrinking a run with a real store takes minutes; a failing run is short as it is.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
TestSessionMachine = SessionMachine.TestCase
