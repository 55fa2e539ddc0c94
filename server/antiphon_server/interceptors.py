"""What holds for every call: its id, its failures as statuses with details, its line in the log."""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, TypeAlias, cast

import grpc
import structlog
from google.protobuf.message import DecodeError, Message
from grpc.aio import ServicerContext

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation, InvalidRequest
from antiphon_server.access.authentication import Authenticate, bad_credential
from antiphon_server.access.guarded import guarded
from antiphon_server.call_writer import CallWriter, note_writer
from antiphon_server.caller import Caller, caller_of, note_caller, trace_context_of
from antiphon_server.offload import Offload
from antiphon_server.status import CODES, to_rpc_status
from antiphon_server.telemetry.call_trace import note_call
from antiphon_server.telemetry.telemetry import Telemetry
from antiphon_server.validation_unknown import check_unknown_fields

REQUEST_ID_KEY: Final = "x-request-id"
"""The key in a call's trailing metadata under which its id stands, as in the log."""

RECHECK_INTERVAL_S: Final = 1.0
"""How long a stream goes on telling at most after its credential was taken back."""

_DEADLINE_SLACK_S: Final = 0.05
_DETAILS_KEY: Final = "grpc-status-details-bin"
_OWN_PREFIX: Final = "/antiphon.v1."
_REFLECTION_PREFIX: Final = "/grpc.reflection."
_LARGE_BYTES: Final = 64 << 10
"""Walking over a larger request would hold the event loop up."""

Context = ServicerContext[Message, Message]
Handler: TypeAlias = "grpc.RpcMethodHandler[Message, Message]"
Read = Callable[[bytes], "Message | _Unreadable | _Unread"]


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands for bytes that are no message, until their call is refused with details."""

    cause: str


@dataclass(frozen=True, slots=True)
class _Unread:
    """Stands for a message of one who came without a credential that holds."""


Received = Message | _Unreadable | _Unread
Requests = Received | AsyncIterator[Received]
Readable = Message | AsyncIterator[Message]
AnswerOnce = Callable[[Readable, Context], Awaitable[Message]]
AnswerMany = Callable[[Readable, Context], AsyncGenerator[Message, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHandling:
    """What all calls share."""

    count_call: Callable[[], AbstractContextManager[None]]
    """Makes what is held while a call runs; may refuse it by an AntiphonError."""
    authenticate: Authenticate
    """Tells who makes a call; refuses it by an AntiphonError."""
    offload: Offload
    """Where large requests are looked through."""
    draw_request_id: Callable[[], str]
    """Makes the id of a call."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    """Is told of every call."""
    clock: Callable[[], float] = time.monotonic
    """In seconds."""


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method of the project's services; those of other packages stay as they are."""

    def __init__(self, handling: CallHandling) -> None:
        """Sets what all calls share."""
        self._handling = handling

    async def intercept_service(  # type: ignore[override]  # Typed for methods of one type only.
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Returns the method's handler, wrapped."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is not None and method.startswith(_REFLECTION_PREFIX):
            return guarded(handler, self._handling.authenticate)
        if handler is None:
            self._handling.telemetry.unknown_method_called()
            return None
        if not method.startswith(_OWN_PREFIX):
            return handler
        wrapped = _Method(name=method.removeprefix(_OWN_PREFIX), handling=self._handling)
        refused = self._handling.authenticate.refuses(handler_call_details.invocation_metadata)
        return wrapped.wrap(handler, reads=_leave_unread if refused else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Method:
    """One method on the way to its handler."""

    name: str
    """Service/Method."""
    handling: CallHandling

    def wrap(self, handler: Handler, *, reads: Read | None) -> Handler:
        """Returns a handler of the same kind that runs the given one inside a call.

        Args:
            handler: The given one.
            reads: What reads messages in place of its own.
        """
        behavior = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        # Methods that a service doesn't have are the generated ones, which are plain functions.
        if inspect.isasyncgenfunction(behavior):
            wrapped: AnswerOnce | AnswerMany = self._generate(cast("AnswerMany", behavior))
        elif inspect.iscoroutinefunction(behavior):
            wrapped = self._answer(cast("AnswerOnce", behavior))
        else:
            wrapped = self._answer(self._refuse)
        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        assert handler.request_deserializer is not None
        noting = reads or _note_failure(handler.request_deserializer)
        read = cast("Callable[[bytes], Message]", noting)
        made: Handler = make(wrapped, read, handler.response_serializer)
        return made

    def _answer(self, behavior: AnswerOnce) -> AnswerOnce:
        """Wraps handlers that return their answer, or write their answers to the context."""

        async def answer(request: Requests, context: Context) -> Message:
            async with self._call(context):
                return await behavior(await self._checked(request, context), context)

        return answer

    def _generate(self, behavior: AnswerMany) -> AnswerMany:
        """Wraps handlers that yield their answers."""

        async def generate(request: Requests, context: Context) -> AsyncGenerator[Message, None]:
            async with self._call(context):
                checked = await self._checked(request, context)
                check = self._still_the_caller(context)
                writer = CallWriter(context, check)  # Lives as long as this call.
                note_writer(writer)
                # Closed here and now, so that a cancelled call lets go at once of what it holds.
                async with contextlib.aclosing(behavior(checked, context)) as answers:
                    async for response in answers:
                        # A long call tells nothing more once its credential is taken back.
                        check()
                        yield response

        return generate

    async def _refuse(self, request: Readable, context: Context) -> Message:
        raise AntiphonError(
            ErrorReason.UNSUPPORTED_FEATURE,
            f"this release has no {self.name.replace('/', '.')}",
            metadata={"capability": self.name.replace("/", ".")},
        )

    async def _checked(
        self, request: Requests, context: Context
    ) -> Message | AsyncIterator[Message]:
        """Refuses a request that can't be read, or has fields that this server does not know.

        Frames of a stream are looked through for fields where they are handled, so that one is
        refused without the others.
        """
        if not isinstance(request, Received):
            return _readable_ones(request, self._still_the_caller(context, interval_s=0.0))
        message = _readable(request)
        if message.ByteSize() > _LARGE_BYTES:
            await self.handling.offload.run(check_unknown_fields, message, "")
        else:
            check_unknown_fields(message, "")
        return message

    def _still_the_caller(
        self, context: Context, *, interval_s: float = RECHECK_INTERVAL_S
    ) -> Callable[[], None]:
        """Returns what refuses to go on once a stream's credential holds no more.

        It looks at most so often, since there is a message for every token.
        """
        return _CallerWatch(self.handling, context, interval_s).check

    def _call(self, context: Context) -> _Call:
        return _Call(self, context)


class _CallerWatch:
    """Whether a stream's caller still has a credential that holds; asked at every token."""

    __slots__ = ("_caller", "_context", "_handling", "_interval_s", "_look_s")

    def __init__(self, handling: CallHandling, context: Context, interval_s: float) -> None:
        self._handling = handling
        self._context = context
        self._caller = caller_of(context)
        self._interval_s = interval_s
        self._look_s = handling.clock() + interval_s  # When it is to be looked at again.

    def check(self) -> None:
        """Raises AntiphonError, BAD_CREDENTIAL: it holds no more."""
        now_s = self._handling.clock()
        if now_s < self._look_s:
            return
        if self._handling.authenticate(self._context) != self._caller:
            raise bad_credential()
        self._look_s = now_s + self._interval_s


class _Call:
    """One call while it runs: turns what is raised inside into its status."""

    def __init__(self, method: _Method, context: Context) -> None:
        handling = method.handling
        self._context = context
        self._request_id = handling.draw_request_id()
        self._authenticate = handling.authenticate
        self._counted = handling.count_call()
        self._log = structlog.get_logger().bind(request_id=self._request_id, method=method.name)
        self._telemetry = handling.telemetry
        self._trace = handling.telemetry.begin_call(
            _OWN_PREFIX.removeprefix("/") + method.name,
            trace_context_of(context),
            request_id=self._request_id,
        )
        self._start_s = time.monotonic()
        # Asked for now: the transport has let go of these where a call was cut off.
        self._trace.peer = context.peer() or ""
        left_s = context.time_remaining()
        self._deadline_s = None if left_s is None else self._start_s + left_s

    async def __aenter__(self) -> None:
        # The call has a task of its own, so what is bound here ends with it.
        structlog.contextvars.bind_contextvars(request_id=self._request_id)
        note_call(self._trace)
        self._context.set_trailing_metadata(((REQUEST_ID_KEY, self._request_id),))
        try:
            self._note(self._authenticate(self._context))
            self._counted.__enter__()
        except AntiphonError as error:
            await self._abort(error)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._counted.__exit__(None, None, None)
        if isinstance(error, AntiphonError):
            await self._abort(error)
        # A call that was cancelled or aborted comes in several shapes; all of them pass.
        elif isinstance(error, Exception) and not _is_transport_error(error):
            self._log.error("call failed", exc_info=error)
            await self._abort(
                AntiphonError(
                    ErrorReason.INTERNAL,
                    f"an internal error; the server's log tells more under {self._request_id}",
                )
            )
        elif error is None:
            self._log.debug("call ended", duration_s=self._duration_s())
            self._tell_end(grpc.StatusCode.OK)
        else:
            self._tell_end(self._code_of_end())

    def _note(self, caller: Caller) -> None:
        note_caller(caller)
        self._trace.tenant = caller.tenant
        if caller.tenant:
            structlog.contextvars.bind_contextvars(tenant=caller.tenant)

    async def _abort(self, error: AntiphonError) -> None:
        status = to_rpc_status(error, self._request_id)
        # What a request's own line says is not said again.
        level = logging.DEBUG if self._trace.has_logged else logging.INFO
        reason, duration_s = error.reason.value, self._duration_s()
        # Of whom nobody knows the tenant, the address is all that there is to act upon.
        is_stranger = error.reason is ErrorReason.BAD_CREDENTIAL
        who = {"peer": self._trace.peer} if is_stranger else {}
        self._log.log(level, "call refused", reason=reason, duration_s=duration_s, **who)
        self._tell_end(CODES[error.reason], error.reason.value)
        await self._context.abort(
            CODES[error.reason],
            status.message,
            ((_DETAILS_KEY, status.SerializeToString()), (REQUEST_ID_KEY, self._request_id)),
        )

    def _tell_end(self, code: grpc.StatusCode, reason: str = "") -> None:
        self._telemetry.call_ended(self._trace, code=code.name, reason=reason)

    def _code_of_end(self) -> grpc.StatusCode:
        """Returns the status of a call that was aborted, or whose caller left or ran late."""
        code = self._context.code()
        if isinstance(code, grpc.StatusCode) and code is not grpc.StatusCode.OK:
            return code
        # The caller's own clock for it may be a little ahead.
        latest_s = time.monotonic() + _DEADLINE_SLACK_S
        if self._deadline_s is not None and self._deadline_s <= latest_s:
            return grpc.StatusCode.DEADLINE_EXCEEDED
        return grpc.StatusCode.CANCELLED

    def _duration_s(self) -> float:
        return round(time.monotonic() - self._start_s, 6)


def _note_failure(read: Callable[[bytes], Message]) -> Read:
    """Returns a reader that raises nothing: the transport would call that a fault of its own."""

    def note_failure(data: bytes) -> Message | _Unreadable:
        try:
            return read(data)
        except DecodeError as error:
            return _Unreadable(str(error))

    return note_failure


def _leave_unread(data: bytes) -> _Unread:
    """Spares the event loop the messages, up to the largest, of callers without a credential."""
    del data
    return _Unread()


def _readable(request: Received) -> Message:
    if isinstance(request, _Unread):
        # The credential has come into force since the call came; it is refused all the same.
        raise bad_credential()
    if isinstance(request, _Unreadable):
        raise InvalidRequest(FieldViolation("request", f"can't be read: {request.cause}"))
    return request


async def _readable_ones(
    requests: AsyncIterator[Received], check: Callable[[], None]
) -> AsyncIterator[Message]:
    async for request in requests:
        check()
        yield _readable(request)


def _is_transport_error(error: Exception) -> bool:
    return isinstance(error, grpc.aio.BaseError) and not isinstance(error, grpc.aio.UsageError)
