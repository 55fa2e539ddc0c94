import re
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import types_pb2
from google.protobuf.message import Message
from google.rpc import status_pb2

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation, InvalidRequest
from antiphon_server.status import CODES, DOMAIN, MAX_DETAILS_BYTES, to_failure, to_rpc_status
from support.server import DETAIL_TYPES

CONTRACT = Path(__file__).parents[3] / "protos/antiphon/v1/types.proto"


def details(status: status_pb2.Status) -> dict[str, Message]:
    found = {}
    for packed in status.details:
        for kind in DETAIL_TYPES:
            message = kind()
            if packed.Unpack(message):
                found[kind.DESCRIPTOR.name] = message
    return found


def test_every_reason_has_a_code() -> None:
    assert set(CODES) == set(ErrorReason)


def test_codes_are_those_of_the_contract() -> None:
    text = CONTRACT.read_text()
    told = re.findall(r"// ([A-Z_]+)[:.][^\n]*\n\s+ERROR_REASON_([A-Z_]+) = \d+;", text)

    assert {reason: code for code, reason in told} == {
        reason.value: code.name for reason, code in CODES.items()
    }
    assert len(told) == len(types_pb2.ErrorReason.values()) - 1


@pytest.mark.parametrize("reason", list(ErrorReason))
def test_error_info_always_names_reason_and_domain(reason: ErrorReason) -> None:
    status = to_rpc_status(AntiphonError(reason, "so it is", metadata={"limit": "3"}), "r-1")

    info = details(status)["ErrorInfo"]
    assert (info.reason, info.domain, dict(info.metadata)) == (reason.value, DOMAIN, {"limit": "3"})
    assert details(status)["RequestInfo"].request_id == "r-1"
    assert status.code == CODES[reason].value[0]
    assert status.message == "so it is"


def test_violations_become_a_bad_request() -> None:
    status = to_rpc_status(InvalidRequest(FieldViolation("config.stop", "is odd")))

    (violation,) = details(status)["BadRequest"].field_violations
    assert (violation.field, violation.description) == ("config.stop", "is odd")


def test_retry_delay_becomes_retry_info() -> None:
    status = to_rpc_status(AntiphonError(ErrorReason.OVERLOADED, "busy", retry_delay_s=1.5))

    delay = details(status)["RetryInfo"].retry_delay
    assert (delay.seconds, delay.nanos) == (1, 500_000_000)


def test_without_retry_delay_no_retry_is_suggested() -> None:
    assert "RetryInfo" not in details(to_rpc_status(AntiphonError(ErrorReason.NEVER_FITS, "no")))


@pytest.mark.parametrize(
    ("reason", "key", "kind"),
    [
        (ErrorReason.SESSION_NOT_FOUND, "session", "antiphon.v1.Session"),
        (ErrorReason.SESSION_EXPIRED, "session", "antiphon.v1.Session"),
        (ErrorReason.TURN_NOT_FOUND, "turn", "antiphon.v1.Turn"),
        (ErrorReason.MODEL_NOT_FOUND, "model", "antiphon.v1.Model"),
        (ErrorReason.ID_TAKEN, "turn", "antiphon.v1.Turn"),
    ],
)
def test_resource_that_is_meant_is_named(reason: ErrorReason, key: str, kind: str) -> None:
    status = to_rpc_status(AntiphonError(reason, "no", metadata={key: "some/name"}))

    resource = details(status)["ResourceInfo"]
    assert (resource.resource_type, resource.resource_name) == (kind, "some/name")


def test_quota_is_named() -> None:
    error = AntiphonError(ErrorReason.QUOTA_EXCEEDED, "full", metadata={"quota": "max_sessions"})

    (violation,) = details(to_rpc_status(error))["QuotaFailure"].violations
    assert violation.subject == "max_sessions"


def test_failed_precondition_names_what_stands_in_the_way() -> None:
    error = AntiphonError(ErrorReason.SESSION_BUSY, "busy", metadata={"turn": "sessions/a/turns/b"})

    (violation,) = details(to_rpc_status(error))["PreconditionFailure"].violations
    assert (violation.type, violation.subject) == ("SESSION_BUSY", "sessions/a/turns/b")


def test_status_of_a_huge_error_fits_the_trailers_and_keeps_its_reason() -> None:
    violations = [FieldViolation("f" * 5000, "ä" * 5000) for _ in range(100)]
    error = AntiphonError(
        ErrorReason.INVALID_FIELD,
        "ö" * 100_000,
        metadata={f"k{i}": "v" * 1000 for i in range(50)},
        violations=violations,
        retry_delay_s=1,
    )

    status = to_rpc_status(error, "r-1")

    assert status.ByteSize() <= MAX_DETAILS_BYTES
    assert {"ErrorInfo", "RetryInfo", "RequestInfo"} <= set(details(status))
    assert status.message.endswith("ö…")


def test_failure_in_a_stream_has_the_same_code_reason_and_figures() -> None:
    error = AntiphonError(
        ErrorReason.INVALID_FIELD,
        "bad",
        metadata={"limit": "3"},
        violations=[FieldViolation("a.b", "is odd")],
        retry_delay_s=2,
    )

    failure = to_failure(error)

    assert failure.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert (failure.reason, failure.message) == ("INVALID_FIELD", "bad")
    assert dict(failure.metadata) == {"limit": "3"}
    assert failure.field_violations[0].field == "a.b"
    assert failure.retry_delay.seconds == 2
    assert not to_failure(AntiphonError(ErrorReason.TIMEOUT, "late")).HasField("retry_delay")


def test_failure_in_a_stream_keeps_the_bounds_of_a_status() -> None:
    error = AntiphonError(
        ErrorReason.TEMPLATE_ERROR,
        "m" * 100_000,
        metadata={f"key{i}": "v" * 10_000 for i in range(50)},
        violations=[FieldViolation("f" * 10_000, "d" * 10_000) for _ in range(50)],
    )

    failure = to_failure(error)

    assert failure.message == to_rpc_status(error).message
    assert failure.ByteSize() < 2 * MAX_DETAILS_BYTES
