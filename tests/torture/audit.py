"""Compares what is kept of a session with what its client knows."""

from collections import Counter

from antiphon.v1.session_pb2 import StartTurn, Turn

from torture.plans import user
from torture.session_notes import SessionNotes
from torture.tally import Kind, Tally, ViolationError
from torture.turn_notes import TurnNotes
from torture.unary import Unary


class Auditor:
    """Looks into sessions that nobody uses at the moment."""

    def __init__(self, unary: Unary, tally: Tally) -> None:
        self._unary = unary
        self._tally = tally

    async def check(self, session: SessionNotes) -> None:
        """Compares all of a session. Raises ViolationError."""
        self._tally.counts["audits"] += 1
        kept = await self._unary.get(session)
        told = (kept.head_turn, kept.num_turns, kept.parent_session)
        expected = (session.head_name, len(session.history), session.parent)
        if told != expected:
            raise ViolationError(Kind.LINEAGE, f"{session.name} is {told}, expected {expected}")
        await self._check_all_turns(session)
        await self._check_history(session)

    async def replay(self, session: SessionNotes, turn: TurnNotes) -> None:
        """Reads a turn's events from its start; they must tell what was told before."""
        copy = TurnNotes(turn.turn_id, turn.frame)
        copy.stopped = turn.stopped
        await self._unary.follow_to_end(session, copy)
        self._tally.counts["turns_replayed"] += 1
        turn.compare(copy)
        if turn.generates and turn.completed and copy.longest != turn.kept_text:
            least, most = turn.kept_bounds
            if not least <= len(copy.longest) <= most and copy.longest != turn.longest:
                raise ViolationError(
                    Kind.TEXT, f"{turn.turn_id} replays {copy.longest!r}, was {turn.longest!r}"
                )

    async def run_again(self, session: SessionNotes, place: int, scratch_id: str) -> None:
        """Runs a turn of the history again, undisturbed: it must say what it said.

        Args:
            session: Whose turn.
            place: Where the turn stands in the history.
            scratch_id: The id of a session to do it in, which is deleted again.
        """
        turn = session.history[place]
        assert isinstance(turn.frame, StartTurn)
        if place:
            scratch = await self._unary.fork(session, place, scratch_id)
        else:
            made = await self._unary.create(scratch_id, session.instructions, tools=session.tools)
            scratch = SessionNotes(
                name=made.name, instructions=session.instructions, tools=session.tools
            )
        frame = StartTurn(turn_id=turn.turn_id, items=turn.frame.items, config=turn.frame.config)
        again = TurnNotes(turn.turn_id, frame)
        await self._unary.run(scratch, again)
        self._tally.counts["turns_run_again"] += 1
        again.compare(turn)
        await self._unary.delete(scratch)

    async def _check_all_turns(self, session: SessionNotes) -> None:
        turns = await self._unary.list_turns(session, show_all=True)
        num_by_id = Counter(turn.name.rpartition("/")[2] for turn in turns)
        known = {turn.turn_id: turn for turn in session.turns()}
        texts = Counter(turn.input[-1].message.text for turn in turns if turn.input)
        twice = [turn_id for turn_id, number in num_by_id.items() if number > 1]
        twice += [text for text, number in texts.items() if number > 1]
        if twice or set(num_by_id) - set(known):
            unknown = set(num_by_id) - set(known)
            raise ViolationError(Kind.DOUBLED, f"{session.name}: twice {twice}, unasked {unknown}")
        if missing := set(known) - set(num_by_id):
            raise ViolationError(Kind.LOST, f"{session.name} lacks {sorted(missing)}")
        in_history = {turn.turn_id for turn in session.history}
        for turn in turns:
            notes = known[turn.name.rpartition("/")[2]]
            check_turn(turn, notes, in_history=notes.turn_id in in_history)

    async def _check_history(self, session: SessionNotes) -> None:
        turns = await self._unary.list_turns(session, show_all=False)
        names = [turn.name for turn in turns]
        expected = [session.turn_name(turn) for turn in session.history]
        if names != expected:
            raise ViolationError(
                Kind.LINEAGE, f"the history of {session.name} is {names}, expected {expected}"
            )
        parents = [turn.parent_turn for turn in turns]
        if parents != ["", *names][: len(names)]:
            raise ViolationError(
                Kind.LINEAGE, f"the parents in {session.name} are {parents} for {names}"
            )


def check_turn(kept: Turn, notes: TurnNotes, *, in_history: bool) -> None:
    """Compares one turn. Raises ViolationError."""
    expected = Turn.STATE_SUPERSEDED if notes.completed else Turn.STATE_FAILED
    if in_history:
        expected = Turn.STATE_COMPLETED
    if kept.state != expected:
        raise ViolationError(
            Kind.LOST, f"{kept.name} is {kept.state}, expected {expected}; {kept.failure.reason}"
        )
    if notes.asked_text and kept.input[-1] != user(notes.asked_text):
        raise ViolationError(Kind.TEXT, f"{kept.name} has the input {kept.input}")
    if not (notes.completed and notes.generates):
        return
    calls = list(kept.output.tool_calls)
    if calls != notes.calls[: len(calls)] or (notes.keeps_calls and calls != notes.calls):
        raise ViolationError(Kind.LOST, f"{kept.name} keeps {calls}, told were {notes.calls}")
    text, (least, most) = kept.output.text, notes.kept_bounds
    begins = notes.longest.startswith(text) or text.startswith(notes.longest)
    if not (begins and least <= len(text) <= most):
        raise ViolationError(
            Kind.LOST,
            f"{kept.name} keeps {text!r}, seen was {notes.longest!r}, {least} to {most} characters",
        )
