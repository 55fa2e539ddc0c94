"""Generation without server-side state."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, closing
from typing import Final, TypeVar

from antiphon.v1 import inference_pb2_grpc
from antiphon.v1.inference_pb2 import (
    GenerateRequest,
    GenerateResponse,
    GenerationCompleted,
    MultiplexGenerateRequest,
    MultiplexGenerateResponse,
    StreamGenerateResponse,
    ValidateConstraintRequest,
    ValidateConstraintResponse,
)
from antiphon.v1.types_pb2 import Delta, GoAway, PromptPart
from google.protobuf.message import Message
from grpc.aio import ServicerContext

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.messages import Scope
from antiphon_server.answer_size import MAX_ANSWER_BYTES, check_answer_size
from antiphon_server.caller import caller_of
from antiphon_server.generation import Generation
from antiphon_server.long_calls import LongCalls
from antiphon_server.offload import Offload
from antiphon_server.request_preparation import RequestPreparation, Terms, start_of
from antiphon_server.services.call_ends import close_with
from antiphon_server.services.multiplex import MultiplexedStream, MultiplexLimits
from antiphon_server.services.multiplex_instructions import CallTerms, InstructionReader
from antiphon_server.services.reader_watch import Grace, ReaderWatch
from antiphon_server.services.stream_events import stream_events
from antiphon_server.telemetry.call_trace import current_call
from antiphon_server.telemetry.request_record import RequestKind
from antiphon_server.telemetry.request_recorder import RequestRecorder
from antiphon_server.telemetry.telemetry import Telemetry
from antiphon_server.times import NS_PER_S

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

_SIZE_HINT: Final = "use StreamGenerate, or ask for less"


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """Checks, starts generations, and tells of them."""

    def __init__(  # noqa: PLR0913 - a composition root's parts, all by name
        self,
        preparation: RequestPreparation,
        *,
        offload: Offload,
        long_calls: LongCalls,
        multiplex_limits: MultiplexLimits,
        telemetry: Telemetry | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Sets what requests go through, where streams stand that are told, and who hears of all.

        Without telemetry nobody does.
        """
        self._preparation = preparation
        self._offload = offload
        self._long_calls = long_calls
        self._multiplex_limits = multiplex_limits
        self._telemetry = telemetry or Telemetry()
        self._clock_ns = clock_ns

    async def Generate(
        self,
        request: GenerateRequest,
        context: ServicerContext[GenerateRequest, GenerateResponse],
    ) -> GenerateResponse:
        """Answers when all outputs are finished."""
        terms = self._terms(context)
        with self._record(request, terms, RequestKind.UNARY) as recorder:
            generation = await self._start(request, context, terms, recorder)
            with closing(generation), self._long_calls.hold(_OneRequest(generation)):
                return await _collect(generation)

    async def StreamGenerate(
        self,
        request: GenerateRequest,
        context: ServicerContext[GenerateRequest, StreamGenerateResponse],
    ) -> AsyncGenerator[StreamGenerateResponse, None]:
        """Answers piece by piece."""
        terms = self._terms(context)
        grace = Grace(grace_s=self._multiplex_limits.grace_s, clock_ns=self._clock_ns)
        with self._record(request, terms, RequestKind.STREAM) as recorder:
            generation = await self._start(request, context, terms, recorder)
            watch = ReaderWatch(grace, generation.close)
            with (
                closing(generation),
                closing(watch),
                self._long_calls.hold(_OneRequest(generation)),
            ):
                watch.start()
                async with aclosing(stream_events(generation)) as events:
                    async for event in events:
                        watch.begin_write()
                        yield event
                        watch.end_write()
                        if watch.reader_left:
                            raise _slow_consumer(generation, grace)

    async def MultiplexGenerate(
        self,
        request_iterator: AsyncIterator[MultiplexGenerateRequest],
        context: ServicerContext[MultiplexGenerateRequest, MultiplexGenerateResponse],
    ) -> AsyncGenerator[MultiplexGenerateResponse, None]:
        """Runs many requests over one stream."""
        terms = self._terms(context)
        call = CallTerms(
            tenant=terms.scope.tenant,
            trace=terms.trace,
            call=terms.call,
            deadline_ns=terms.deadline_ns,
        )
        stream = MultiplexedStream(
            self._preparation,
            InstructionReader(call, offload=self._offload, clock_ns=self._clock_ns),
            limits=self._multiplex_limits,
            telemetry=self._telemetry,
            clock_ns=self._clock_ns,
        )
        close_with(context, stream)
        with closing(stream), self._long_calls.hold_stream(stream):
            async with aclosing(stream.frames(request_iterator)) as frames:
                async for frame in frames:
                    yield frame

    async def ValidateConstraint(
        self,
        request: ValidateConstraintRequest,
        context: ServicerContext[ValidateConstraintRequest, ValidateConstraintResponse],
    ) -> ValidateConstraintResponse:
        """Says whether requests may use a constraint."""
        return await self._preparation.try_constraint(request)

    def _terms(self, context: ServicerContext[RequestT, ResponseT]) -> Terms:
        received_ns = self._clock_ns()
        left_s = context.time_remaining()
        return Terms(
            scope=Scope(tenant=caller_of(context).tenant),
            received_ns=received_ns,
            deadline_ns=None if left_s is None else received_ns + round(left_s * NS_PER_S),
            trace=current_call().inner,
            call=current_call(),
        )

    def _record(self, request: GenerateRequest, terms: Terms, kind: RequestKind) -> RequestRecorder:
        """Begins the record of a request."""
        return self._telemetry.begin_request(start_of(request, terms, kind))

    async def _start(
        self,
        request: GenerateRequest,
        context: ServicerContext[GenerateRequest, ResponseT],
        terms: Terms,
        recorder: RequestRecorder,
    ) -> Generation:
        """Checks all of a request, cheap checks first, and has it run."""
        checked = self._preparation.check(request, terms)
        spec = await self._preparation.render(request, checked, terms, recorder)
        generation = checked.generator.start(spec)
        recorder.follow(generation, spec)
        close_with(context, generation)
        return generation


class _OneRequest:
    """A call that ends with its only request."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    def send_away(self, go_away: GoAway, end: AntiphonError) -> None:
        """Nothing: it ends by itself, and can't tell its caller anything else."""

    def cut_off(self, end: AntiphonError) -> None:
        """See LongCall."""
        self._generation.fail(end)


def _slow_consumer(generation: Generation, grace: Grace) -> AntiphonError:
    num_tokens = generation.usage.output_tokens
    return AntiphonError(
        ErrorReason.SLOW_CONSUMER,
        f"Nothing was read for {grace.grace_s:g} s, so the request was ended after {num_tokens}"
        " output tokens. Read on while it runs, or use a session, whose turns can be resumed.",
        metadata={
            "output_tokens": str(num_tokens),
            "grace_s": f"{grace.grace_s:g}",
            "resumable": "false",
        },
    )


async def _collect(generation: Generation) -> GenerateResponse:
    """Reads a generation to its end; gives it up as soon as the answer is too large."""
    response = GenerateResponse()
    # Filled where they are: to copy large outputs at the end would hold the event loop up.
    outputs = [response.outputs.add(index=record.index) for record in generation.outputs]
    size_bytes = response.ByteSize()
    async with aclosing(generation.events()) as events:
        async for event in events:
            if isinstance(event, Delta):
                output = outputs[event.output_index]
                output.token_ids.extend(event.token_ids)
                output.logprobs.extend(event.logprobs)
            elif isinstance(event, PromptPart):
                response.prompt_token_ids.extend(event.token_ids)
                # A stream's report has an empty entry for the first position; an answer has none.
                has_first = bool(event.first_position)
                response.prompt_logprobs.extend(event.logprobs[0 if has_first else 1 :])
            elif isinstance(event, GenerationCompleted):
                response.usage.CopyFrom(event.usage)
                response.timings.CopyFrom(event.timings)
            if isinstance(event, Delta | PromptPart):
                size_bytes += event.ByteSize()
                if size_bytes > MAX_ANSWER_BYTES:
                    raise _too_large(size_bytes)
    for output, record in zip(outputs, generation.outputs, strict=True):
        output.text = record.text
        output.reasoning = record.reasoning
        output.tool_calls.extend(record.tool_calls)
        output.finish_reason = record.finish_reason
        if record.stop_match is not None:
            output.stop_match.CopyFrom(record.stop_match)
    check_answer_size(response, hint=_SIZE_HINT)
    return response


def _too_large(size_bytes: int) -> AntiphonError:
    return AntiphonError(
        ErrorReason.RESPONSE_TOO_LARGE,
        f"the answer has {size_bytes} bytes so far; a message has at most {MAX_ANSWER_BYTES}; "
        f"{_SIZE_HINT}",
        metadata={"size_bytes": str(size_bytes), "limit_bytes": str(MAX_ANSWER_BYTES)},
    )
