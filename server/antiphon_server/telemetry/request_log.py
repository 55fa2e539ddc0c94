"""A line in the log for each request and each turn that ended. What users say is never in it."""

import logging
from typing import Final

import structlog

from antiphon_engine.api.errors import ErrorReason
from antiphon_server.telemetry.request_record import (
    CallRecord,
    Outcome,
    RequestKind,
    RequestRecord,
)
from antiphon_server.times import NS_PER_S

REQUEST_ENDED: Final = "request ended"
TURN_ENDED: Final = "turn ended"
_TURNS: Final = (RequestKind.TURN, RequestKind.APPENDED_TURN)
_FAULTS: Final = frozenset(
    {
        ErrorReason.INTERNAL.value,
        ErrorReason.CONSTRAINT_VIOLATED.value,
        ErrorReason.ENGINE_DOWN.value,
        ErrorReason.STORE_UNAVAILABLE.value,
    }
)
"""Reasons that are the server's, and not its callers'."""

Field = str | int | float | tuple[str, ...]


class RequestLog:
    """A RecordSink that logs."""

    def request_ended(self, record: RequestRecord) -> None:
        """See RecordSink."""
        is_fault = record.failure_reason in _FAULTS
        level = logging.WARNING if is_fault else logging.INFO
        if logging.getLogger().isEnabledFor(level):
            event = TURN_ENDED if record.kind in _TURNS else REQUEST_ENDED
            structlog.get_logger().log(level, event, **fields_of(record))

    def call_ended(self, record: CallRecord) -> None:
        """See RecordSink. Calls have lines of their own."""

    async def close(self, limit_s: float) -> None:
        """See RecordSink. The log is closed by whoever has opened it."""


def fields_of(record: RequestRecord) -> dict[str, Field]:
    """Returns what the line of a request says beside its event; what does not hold is left out."""
    facts = record.facts
    fields: dict[str, Field] = {
        "request_id": record.request_id,
        "kind": record.kind.value,
        "model": record.model,
        "tenant": record.tenant,
        "session": record.session,
        "turn": record.turn,
        "epoch": record.epoch if record.is_recovered else 0,
        "outcome": record.outcome.value,
        "reason": record.failure_reason if record.outcome is Outcome.FAILED else "",
        "finish": tuple(reason.lower() for reason in record.finish_reasons),
        "prompt_tokens": record.prompt_tokens,
        "cached_prompt_tokens": record.cached_prompt_tokens,
        "output_tokens": record.output_tokens,
        "reasoning_tokens": record.reasoning_tokens,
        "tool_calls": record.num_tool_calls,
        "constraint": record.constraint,
        "preemptions": facts.num_preemptions,
    }
    known = {key: value for key, value in fields.items() if value}
    return known | _times(record) | _trace(record)


def _times(record: RequestRecord) -> dict[str, Field]:
    facts = record.facts
    times: dict[str, Field] = {}
    if facts.first_step_ns:
        times["queue_s"] = _seconds(facts.first_step_ns - record.received_ns)
    if facts.first_token_ns:
        times["first_token_s"] = _seconds(facts.first_token_ns - record.received_ns)
        times["decode_s"] = _seconds(facts.last_token_ns - facts.first_token_ns)
    if facts.times is not None and facts.times.mask_wait_ns:
        times["mask_wait_s"] = _seconds(facts.times.mask_wait_ns)
    return times | {"duration_s": _seconds(record.ended_ns - record.received_ns)}


def _trace(record: RequestRecord) -> dict[str, Field]:
    """Returns the ids of a span that is told."""
    place = record.place
    if place is None or not (place.is_sampled or record.kept_for):
        return {}
    return {"trace_id": place.trace_id, "span_id": place.span_id}


def _seconds(duration_ns: int) -> float:
    return round(duration_ns / NS_PER_S, 6)
