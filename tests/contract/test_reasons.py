from antiphon.v1 import types_pb2

from antiphon_engine.api.errors import ErrorReason

PREFIX = "ERROR_REASON_"


def test_reasons_are_the_contracts():
    in_contract = [
        value.name.removeprefix(PREFIX)
        for value in types_pb2.ErrorReason.DESCRIPTOR.values
        if value.number
    ]

    assert [reason.value for reason in ErrorReason] == in_contract
