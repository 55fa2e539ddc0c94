import grpc
import pytest
from antiphon.v1 import inference_pb2_grpc, types_pb2
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from antiphon_client import (
    Client,
    ClientOptions,
    EngineDown,
    FieldViolation,
    InternalError,
    InvalidArgument,
    NotReachable,
    RetryPolicy,
    ServerError,
    Unavailable,
)
from antiphon_client.errors import ErrorDetails
from antiphon_client.failures import error_of, from_failure
from support.scripted_services import refuse, serving

ONCE = ClientOptions(retry=RetryPolicy(max_attempts=1))


class Refusing(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, code, message, *details):
        self.refusal = (code, message, *details)

    async def Generate(self, request, context):
        await refuse(context, *self.refusal)

    async def StreamGenerate(self, request, context):
        await refuse(context, *self.refusal)
        yield


async def refused_call(servicer, *, streamed=False):
    async with serving(inference=servicer) as target, Client(target, ONCE) as client:
        asking = anext(client.stream_generate("hello")) if streamed else client.generate("hello")
        with pytest.raises(ServerError) as caught:
            await asking
    return caught.value


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_error_tells_all_that_the_status_details_tell(streamed):
    error = await refused_call(
        Refusing(
            grpc.StatusCode.INVALID_ARGUMENT,
            "config.stop: too many",
            error_details_pb2.ErrorInfo(
                reason="INVALID_FIELD", domain="antiphon.dev", metadata={"limit": "16"}
            ),
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(
                        field="config.stop", description="too many"
                    )
                ]
            ),
            error_details_pb2.RequestInfo(request_id="r-1"),
        ),
        streamed=streamed,
    )

    assert isinstance(error, InvalidArgument)
    assert error.details == ErrorDetails(
        code=grpc.StatusCode.INVALID_ARGUMENT,
        reason="INVALID_FIELD",
        message="config.stop: too many",
        metadata={"limit": "16"},
        violations=(FieldViolation("config.stop", "too many"),),
        request_id="r-1",
    )
    assert str(error) == "config.stop: too many"


async def test_a_retry_delay_is_told_in_seconds():
    error = await refused_call(
        Refusing(
            grpc.StatusCode.UNAVAILABLE,
            "full",
            error_details_pb2.ErrorInfo(reason="OVERLOADED"),
            error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=250_000_000)),
        )
    )

    assert isinstance(error, Unavailable)
    assert not isinstance(error, NotReachable)
    assert error.retry_delay_s == 0.25


async def test_a_server_that_is_not_there_is_not_reachable():
    async with serving() as target:
        pass

    async with Client(target, ONCE) as client:
        with pytest.raises(NotReachable) as caught:
            await client.generate("hello")

    assert caught.value.reason == ""


async def test_a_failure_inside_a_stream_becomes_the_same_exception_as_a_status():
    failure = types_pb2.Failure(
        code=grpc.StatusCode.UNAVAILABLE.value[0],
        reason="ENGINE_DOWN",
        message="the engine is down",
        metadata={"state": "starting"},
        retry_delay=duration_pb2.Duration(seconds=2),
    )

    error = from_failure(failure)

    assert type(error) is EngineDown
    assert (error.reason, error.retry_delay_s) == ("ENGINE_DOWN", 2.0)
    assert error.metadata == {"state": "starting"}


def test_a_failure_without_a_delay_asks_for_no_retry():
    assert from_failure(types_pb2.Failure(code=13, reason="INTERNAL")).retry_delay_s is None


def test_a_failure_of_an_unknown_code_is_still_an_error():
    error = from_failure(types_pb2.Failure(code=77, message="odd"))

    assert (error.code, str(error)) == (grpc.StatusCode.UNKNOWN, "odd")


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK])
def test_every_code_has_an_exception_that_names_it(code):
    error = error_of(ErrorDetails(code=code, reason="R"))

    assert error.code is code
    assert str(error) == code.name


def test_internal_faults_are_told_apart_from_refusals():
    assert type(error_of(ErrorDetails(code=grpc.StatusCode.INTERNAL))) is InternalError
