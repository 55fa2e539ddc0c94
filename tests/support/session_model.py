"""A naive model of sessions: each prompt is worked out anew from a session's whole past."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_RERENDER,
    AppendItems,
    HistoryPoint,
    StartTurn,
    Turn,
)
from antiphon.v1.types_pb2 import (
    FINISH_REASON_CANCELLED,
    FINISH_REASON_MAX_OUTPUT_TOKENS,
    FINISH_REASON_TIME_LIMIT,
    Item,
)

from antiphon_server.sessions.records import SessionKey
from support.fake_renderer import FakeRenderer
from support.session_rows import user

CONTINUABLE = (
    FINISH_REASON_MAX_OUTPUT_TOKENS,
    FINISH_REASON_TIME_LIMIT,
    FINISH_REASON_CANCELLED,
)


@dataclass(frozen=True, kw_only=True)
class ModelTurn:
    """A turn that has ended."""

    turn_id: str
    request: StartTurn | AppendItems
    state: int
    output_ids: tuple[int, ...] = ()
    """What the history has of its output."""
    text: str = ""
    """What these say."""
    finish: int = 0

    @property
    def generates(self) -> bool:
        return isinstance(self.request, StartTurn)

    @property
    def continues(self) -> bool:
        return isinstance(self.request, StartTurn) and self.request.continue_answer


@dataclass
class ModelSession:
    """What a session should be."""

    key: SessionKey
    policy: int
    instructions: str = ""
    turns: list[ModelTurn] = field(default_factory=list)
    renderer: FakeRenderer = field(default_factory=FakeRenderer)

    @property
    def history(self) -> list[ModelTurn]:
        return [turn for turn in self.turns if turn.state == Turn.STATE_COMPLETED]

    @property
    def head(self) -> ModelTurn | None:
        return self.history[-1] if self.history else None

    @property
    def has_pending(self) -> bool:
        return self.head is not None and not self.head.generates

    def up_to(self, turn_id: str) -> list[ModelTurn]:
        """The history up to a turn of it; empty: up to none."""
        ids = [turn.turn_id for turn in self.history]
        return self.history[: ids.index(turn_id) + 1] if turn_id else []

    def point(self, turn_id: str) -> HistoryPoint:
        """The place behind a turn; empty: the beginning."""
        return HistoryPoint(turn=self.key.turn_name(turn_id)) if turn_id else HistoryPoint(start={})

    def prompt(self, history: Sequence[ModelTurn], request: StartTurn) -> list[int]:
        """The prompt of a turn that stands on a history."""
        asked = ModelTurn(turn_id="", request=request, state=Turn.STATE_RUNNING)
        if self.policy == HISTORY_POLICY_RERENDER:
            return self._rendered(history, asked)
        ids: list[int] = []
        items: list[Item] = []
        for turn in [*history, asked]:
            items += turn.request.items
            if turn.generates:
                if not turn.continues:
                    ids += self._piece(items, is_first=not ids)
                ids += turn.output_ids
                items = []
        return ids

    def rewind(self, turn_id: str) -> None:
        """Takes the history back to behind a turn; empty: to its start."""
        kept = {turn.turn_id for turn in self.up_to(turn_id)}
        self.turns = [
            replace(turn, state=Turn.STATE_SUPERSEDED)
            if turn.state == Turn.STATE_COMPLETED and turn.turn_id not in kept
            else turn
            for turn in self.turns
        ]

    def fork(self, key: SessionKey, turn_id: str) -> "ModelSession":
        return ModelSession(key, self.policy, self.instructions, self.up_to(turn_id))

    def _piece(self, items: Sequence[Item], *, is_first: bool) -> list[int]:
        if is_first:
            return self.renderer.render_conversation(
                items, instructions=self.instructions
            ).token_ids
        return self.renderer.render_continuation(items, kept_tail=()).token_ids

    def _rendered(self, history: Sequence[ModelTurn], asked: ModelTurn) -> list[int]:
        items: list[Item] = []
        answer: list[ModelTurn] = []
        for turn in [*history, asked]:
            if not turn.continues:
                items += [user("".join(part.text for part in answer))] if answer else []
                items += turn.request.items
                answer = []
            answer += [turn] if turn.generates else []
        earlier = [token_id for part in answer[:-1] for token_id in part.output_ids]
        whole = self.renderer.render_conversation(items, instructions=self.instructions)
        return [*whole.token_ids, *earlier]
