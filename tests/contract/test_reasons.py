"""Every reason of a failure: the contract's, and what a caller sees of it."""

import json
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import types_pb2

from antiphon_engine.api.errors import ErrorReason
from antiphon_server.status import CODES, DOMAIN
from support.failures_on_demand import PROVOCATIONS, Provocation
from support.server import RunningServer, details_of, running_server
from support.tiny_tokenizers import save_byte_level_tokenizer

PREFIX = "ERROR_REASON_"

DETAILS = {
    grpc.StatusCode.NOT_FOUND: {"ResourceInfo"},
    grpc.StatusCode.ALREADY_EXISTS: {"ResourceInfo"},
    grpc.StatusCode.FAILED_PRECONDITION: {"PreconditionFailure"},
    grpc.StatusCode.UNAVAILABLE: {"RetryInfo"},
}
"""What a code brings beside ErrorInfo and RequestInfo."""
MORE_DETAILS = {
    "INVALID_FIELD": {"BadRequest"},
    "UNSUPPORTED_CONSTRAINT": {"BadRequest"},
    "QUOTA_EXCEEDED": {"QuotaFailure", "RetryInfo"},
}
METADATA = {
    "UNSUPPORTED_CONSTRAINT": {"field", "path"},
    "CONSTRAINT_TOO_COMPLEX": {"field", "limit_bytes"},
    "CONSTRAINT_VIOLATED": {"constraint"},
    "CONTEXT_LENGTH_EXCEEDED": {"limit", "prompt"},
    "UNSUPPORTED_FEATURE": {"capability"},
    "SESSION_EXPIRED": {"session", "expire_time"},
    "STALE_HEAD": {"current_head"},
    "TOOL_RESULTS_MISSING": {"call_ids"},
    "SESSION_BUSY": {"turn"},
    "SESSION_ATTACHED": {"since"},
    "SESSION_FULL": {"limit", "prompt"},
    "QUOTA_EXCEEDED": {"quota", "limit", "used"},
    "NEVER_FITS": {"needed", "available"},
    "SLOW_CONSUMER": {"resumable"},
    "RESPONSE_TOO_LARGE": {"size_bytes", "limit_bytes"},
    "OVERLOADED": {"limit"},
}
"""What the metadata tells at least."""


def test_reasons_are_the_contracts() -> None:
    in_contract = [
        value.name.removeprefix(PREFIX)
        for value in types_pb2.ErrorReason.DESCRIPTOR.values
        if value.number
    ]

    assert [reason.value for reason in ErrorReason] == in_contract


def test_every_reason_is_provoked() -> None:
    assert sorted(PROVOCATIONS) == sorted(reason.value for reason in ErrorReason)


def checkpoint_of(directory: Path, provocation: Provocation) -> Path:
    """Saves a tokenizer with the template that is asked for."""
    checkpoint = save_byte_level_tokenizer(directory / "tokenizer")
    if provocation.template is not None:
        path = checkpoint / "tokenizer_config.json"
        values = json.loads(path.read_text())
        values.pop("chat_template", None)
        if provocation.template:
            values["chat_template"] = provocation.template
        path.write_text(json.dumps(values))
    return checkpoint


async def failure_of(server: RunningServer, provocation: Provocation) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await provocation.by(server)
    return caught.value


@pytest.mark.parametrize("reason", PROVOCATIONS)
async def test_reason_reaches_the_caller_with_its_code_and_details(
    tmp_path: Path, reason: str
) -> None:
    provocation = PROVOCATIONS[reason]
    async with running_server(
        tmp_path,
        engine=provocation.engine(),
        checkpoint=checkpoint_of(tmp_path, provocation),
        settings=[*provocation.settings, *provocation.files(tmp_path)],
    ) as server:
        error = await failure_of(server, provocation)

    details = details_of(error)
    info = details["ErrorInfo"]
    code = CODES[ErrorReason(reason)]
    assert (error.code(), info.reason, info.domain) == (code, reason, DOMAIN)
    assert set(details) >= {"ErrorInfo", "RequestInfo"}
    assert set(details) >= DETAILS.get(code, set()) | MORE_DETAILS.get(reason, set())
    assert set(info.metadata) >= METADATA.get(reason, set())
    assert details["RequestInfo"].request_id == dict(error.trailing_metadata())["x-request-id"]
    assert "Traceback" not in str(error.details())
