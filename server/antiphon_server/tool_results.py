"""Which calls of a conversation wait for their results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from antiphon.v1.types_pb2 import Item

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.validation_fields import Violations

_MAX_NAMED = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsBefore:
    """The calls, by their ids, of what stands before some items."""

    open: Sequence[str] = ()
    """Those that have no result yet."""
    dropped: Sequence[str] = ()
    """Those that are left out, since the turn that made them was stopped."""
    turn: str = ""
    """The last turn's name; empty: there is none."""


NO_CALLS: Final = CallsBefore()


def calls_open_behind(before: CallsBefore, items: Sequence[Item], path: str) -> tuple[str, ...]:
    """Returns the ids of the calls that have no result behind these items.

    Args:
        before: What they stand behind.
        items: What follows, with calls of its own and results in any order.
        path: Of the items, for what is wrong with them.

    Raises:
        InvalidRequest: a result answers no call that waits for one, or a call's id is taken.
        AntiphonError: TOOL_RESULTS_MISSING; something else is said before all results are there.
    """
    waiting = dict.fromkeys(before.open)
    answered: set[str] = set()
    violations = Violations()
    for index, item in enumerate(items):
        kind = item.WhichOneof("kind")
        if kind == "tool_result":
            call_id = item.tool_result.call_id
            if call_id not in waiting:
                why = "has its result already" if call_id in answered else "does not wait for one"
                if call_id in before.dropped:
                    why = f"is left out: {before.turn}, which made it, was stopped; ask anew"
                violations.add(
                    f"{path}[{index}].tool_result.call_id", f"the call {call_id[:80]!r} {why}"
                )
            waiting.pop(call_id, None)
            answered.add(call_id)
        elif kind == "tool_call":
            call_id = item.tool_call.call_id
            if call_id in waiting or call_id in answered:
                violations.add(
                    f"{path}[{index}].tool_call.call_id", f"{call_id[:80]!r} is another call's"
                )
            waiting[call_id] = None
        elif waiting:
            violations.raise_if_any()
            raise results_missing(tuple(waiting), f"before {path}[{index}]", turn=before.turn)
    violations.raise_if_any()
    return tuple(waiting)


def results_missing(call_ids: Sequence[str], where: str, *, turn: str = "") -> AntiphonError:
    """Returns the error for calls without results, of a turn where they are of any."""
    named = ", ".join(call_ids[:_MAX_NAMED])
    return AntiphonError(
        ErrorReason.TOOL_RESULTS_MISSING,
        f"The results of {len(call_ids)} tool calls are missing {where}: {named}. Send each as a "
        "tool_result, ahead of everything else; to drop the calls, rewind to an earlier turn.",
        metadata={"call_ids": ",".join(call_ids[:_MAX_NAMED])} | ({"turn": turn} if turn else {}),
    )
