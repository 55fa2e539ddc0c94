"""Every method of the contract is served or refused by name, and the README says which."""

import asyncio
import re
from pathlib import Path

import grpc
import pytest
from antiphon.v1 import admin_pb2, inference_pb2, model_pb2, session_pb2
from google.protobuf import message_factory

from support.server import details_of, running_server

README = (Path(__file__).parents[2] / "README.md").read_text()
CALLS_ROW = next(line for line in README.splitlines() if line.startswith("| Calls |"))
SERVED = set(re.findall(r"\w+", CALLS_ROW))
REFUSED = set(
    re.findall(r"\w+", re.search(r"not of this release is refused[^.]+\.", README).group())
)
WHOLE_SERVICES = set(re.findall(r"`(\w+)`;", CALLS_ROW))
METHODS = [
    method
    for module in (admin_pb2, inference_pb2, model_pb2, session_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


async def outcome(channel, method):
    """Calls a method with one empty request, and returns how that ends: an error or None."""
    kind = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }[method.client_streaming, method.server_streaming]
    request = message_factory.GetMessageClass(method.input_type)()
    call = kind(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=bytes,
    )(iter([request]) if method.client_streaming else request, timeout=60)
    try:
        await (call.read() if method.server_streaming else call)
    except grpc.aio.AioRpcError as error:
        return error
    call.cancel()
    return None


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """How each method ends when it is called with an empty request."""

    async def ask():
        async with running_server(tmp_path_factory.mktemp("server")) as running:
            return {
                method.name: await outcome(
                    running.admin_channel
                    if method.containing_service.name == "AdminService"
                    else running.channel,
                    method,
                )
                # Behind a drain nothing else is answered.
                for method in sorted(METHODS, key=lambda method: method.name == "Drain")
            }

    return asyncio.run(ask())


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_method_is_served_or_refused_as_the_readme_says(method, outcomes):
    error = outcomes[method.name]
    service = method.containing_service.name
    named_as_served = method.name in SERVED or service in WHOLE_SERVICES

    if error is not None and error.code() is grpc.StatusCode.UNIMPLEMENTED:
        info = details_of(error)["ErrorInfo"]
        assert info.reason == "UNSUPPORTED_FEATURE"
        assert method.name in error.details()
        assert method.name in REFUSED
        assert not named_as_served
    else:
        assert named_as_served
        assert method.name not in REFUSED


def test_an_empty_request_breaks_no_method(outcomes):
    broken = [
        name
        for name, error in outcomes.items()
        if error is not None and error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    ]

    assert not broken
