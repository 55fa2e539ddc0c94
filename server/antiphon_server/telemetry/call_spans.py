"""The span of a call, by the stable conventions for RPC."""

import re
from typing import Final

from opentelemetry.trace import SpanKind

from antiphon_server.telemetry import conventions as names
from antiphon_server.telemetry.request_record import AttributeValue, CallRecord
from antiphon_server.telemetry.span_making import SpanDescription, SpanMaker

_PEER: Final = re.compile(r"ipv[46]:(?P<address>.+):(?P<port>\d+)")


def is_told(record: CallRecord) -> bool:
    """Whether a call has a span: it was sampled, or it or what is in it went wrong."""
    if record.place is None:
        return False
    return record.place.is_sampled or record.is_kept or record.code in names.SERVER_FAULTS


def make_call_span(record: CallRecord, maker: SpanMaker) -> None:
    """Makes the span of a call that is told."""
    assert record.place is not None
    is_fault = record.code in names.SERVER_FAULTS
    description = SpanDescription(
        name=record.method,
        kind=SpanKind.SERVER,
        start_ns=record.started_ns + record.wall_offset_ns,
        end_ns=record.ended_ns + record.wall_offset_ns,
        attributes=_attributes(record, is_fault=is_fault),
        error=(record.reason or record.code) if is_fault else "",
    )
    maker.make_placed(description, record.place)


def _attributes(record: CallRecord, *, is_fault: bool) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        names.RPC_SYSTEM_NAME: names.GRPC,
        names.RPC_METHOD: record.method,
        names.RPC_RESPONSE_STATUS_CODE: record.code,
        names.REQUEST_ID: record.request_id,
    }
    if is_fault:
        attributes[names.ERROR_TYPE] = record.code
    if record.reason:
        attributes[names.FAILURE_REASON] = record.reason
    if record.tenant:
        attributes[names.TENANT] = record.tenant
    if match := _PEER.fullmatch(record.peer.replace("%5B", "[").replace("%5D", "]")):
        attributes[names.CLIENT_ADDRESS] = match["address"].strip("[]")
        attributes[names.CLIENT_PORT] = int(match["port"])
    return attributes
