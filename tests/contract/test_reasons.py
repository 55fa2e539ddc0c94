import grpc
from antiphon.v1 import types_pb2

import antiphon_client
from antiphon_client.errors import ErrorDetails
from antiphon_client.failures import error_of
from antiphon_client.reasons import BY_REASON
from antiphon_engine.api.errors import ErrorReason
from antiphon_server.status import CODES

PREFIX = "ERROR_REASON_"


def test_reasons_are_the_contracts():
    in_contract = [
        value.name.removeprefix(PREFIX)
        for value in types_pb2.ErrorReason.DESCRIPTOR.values
        if value.number
    ]

    assert [reason.value for reason in ErrorReason] == in_contract


def test_every_reason_is_an_exception_of_the_clients_under_the_class_of_its_status():
    assert list(BY_REASON) == [reason.value for reason in ErrorReason]
    for reason, code in CODES.items():
        error = error_of(ErrorDetails(code=code, reason=reason.value))
        general = error_of(ErrorDetails(code=code, reason="LATER"))

        assert type(error) is BY_REASON[reason.value]
        assert isinstance(error, type(general))
        assert getattr(antiphon_client, type(error).__name__) is type(error)


def test_a_reason_under_another_status_goes_by_the_status():
    details = ErrorDetails(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="OVERLOADED")

    assert type(error_of(details)) is antiphon_client.ResourceExhausted
