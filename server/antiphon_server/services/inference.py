"""Generation without server-side state."""

import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, closing
from typing import Final, TypeVar

from antiphon.v1 import inference_pb2_grpc
from antiphon.v1.inference_pb2 import (
    GenerateRequest,
    GenerateResponse,
    GenerationCompleted,
    MultiplexGenerateRequest,
    MultiplexGenerateResponse,
    OutputFinished,
    StreamGenerateResponse,
    ValidateConstraintRequest,
    ValidateConstraintResponse,
)
from antiphon.v1.types_pb2 import Delta, GenerationStarted
from google.protobuf.message import Message
from grpc.aio import ServicerContext

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.messages import Scope
from antiphon_server.answer_size import MAX_ANSWER_BYTES, check_answer_size
from antiphon_server.caller import caller_of, traceparent_of
from antiphon_server.capabilities import unsupported_feature
from antiphon_server.convert import to_prompt_parts
from antiphon_server.generation import Event, Generation, GenerationSpec, Generator
from antiphon_server.offload import Offload
from antiphon_server.prompt import render_prompt
from antiphon_server.served_model import ServedModel
from antiphon_server.served_models import find_model
from antiphon_server.validation import check_config, resolve_config, resolve_num_outputs

ResponseT = TypeVar("ResponseT", bound=Message)

_SIZE_HINT: Final = "use StreamGenerate, or ask for less"
_NANOS: Final = 1_000_000_000


class InferenceService(inference_pb2_grpc.InferenceServiceServicer):
    """Generate and StreamGenerate. The other methods are not built and are refused as such."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        generators: Mapping[str, Generator],
        *,
        offload: Offload,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        random_source: random.Random | None = None,
    ) -> None:
        """Models and generators are by the models' names; seeds come from `random_source`."""
        self._models = models
        self._generators = generators
        self._offload = offload
        self._clock_ns = clock_ns
        self._random = random_source or random.SystemRandom()

    async def Generate(
        self,
        request: GenerateRequest,
        context: ServicerContext[GenerateRequest, GenerateResponse],
    ) -> GenerateResponse:
        """Answers when all outputs are finished."""
        spec, generator = await self._prepare(request, context)
        with closing(generator.start(spec)) as generation:
            _close_with(context, generation)
            return await _collect(generation, spec)

    async def StreamGenerate(
        self,
        request: GenerateRequest,
        context: ServicerContext[GenerateRequest, StreamGenerateResponse],
    ) -> AsyncGenerator[StreamGenerateResponse, None]:
        """Answers piece by piece."""
        spec, generator = await self._prepare(request, context)
        with closing(generator.start(spec)) as generation:
            _close_with(context, generation)
            async with aclosing(generation.events()) as events:
                async for event in events:
                    yield _to_response(event)
                    if isinstance(event, GenerationStarted) and spec.config.want_prompt_token_ids:
                        for part in to_prompt_parts(spec.prompt_ids):
                            yield StreamGenerateResponse(prompt_part=part)

    async def MultiplexGenerate(
        self,
        request_iterator: AsyncIterator[MultiplexGenerateRequest],
        context: ServicerContext[MultiplexGenerateRequest, MultiplexGenerateResponse],
    ) -> AsyncGenerator[MultiplexGenerateResponse, None]:
        """Is not built in this release."""
        raise unsupported_feature("InferenceService.MultiplexGenerate", "MultiplexGenerate")
        yield  # Makes it the kind of handler that the contract asks for.

    async def ValidateConstraint(
        self,
        request: ValidateConstraintRequest,
        context: ServicerContext[ValidateConstraintRequest, ValidateConstraintResponse],
    ) -> ValidateConstraintResponse:
        """Is not built in this release."""
        raise unsupported_feature("InferenceService.ValidateConstraint", "ValidateConstraint")

    async def _prepare(
        self, request: GenerateRequest, context: ServicerContext[GenerateRequest, ResponseT]
    ) -> tuple[GenerationSpec, Generator]:
        """Checks all of a request, cheap checks first, and turns it into what the engine needs."""
        received_ns = self._clock_ns()
        remaining_s = context.time_remaining()
        deadline_ns = None if remaining_s is None else received_ns + round(remaining_s * _NANOS)
        model = find_model(self._models, request.model)
        generator = self._generators[model.name]
        check_config(request.config, model=model, path="config")
        asked = request.num_outputs if request.HasField("num_outputs") else None
        num_outputs = resolve_num_outputs(asked, model=model, path="num_outputs")
        generator.admission.check(deadline_ns=deadline_ns)
        rendered = await render_prompt(
            request.prompt, model=model, offload=self._offload, path="prompt"
        )
        config = resolve_config(
            request.config,
            model=model,
            prompt_tokens=len(rendered.token_ids),
            num_outputs=num_outputs,
            path="config",
            draw_seed=lambda: self._random.getrandbits(64),
        )
        spec = GenerationSpec(
            prompt_ids=rendered.token_ids,
            config=config,
            num_outputs=num_outputs,
            scope=Scope(tenant=caller_of(context).tenant),
            received_ns=received_ns,
            deadline_ns=deadline_ns,
            traceparent=traceparent_of(context),
        )
        return spec, generator


async def _collect(generation: Generation, spec: GenerationSpec) -> GenerateResponse:
    """Reads a generation to its end; gives it up as soon as the answer is too large."""
    response = GenerateResponse()
    # Filled where they are: to copy large outputs at the end would hold the event loop up.
    outputs = [response.outputs.add(index=record.index) for record in generation.outputs]
    if spec.config.want_prompt_token_ids:
        response.prompt_token_ids.extend(spec.prompt_ids)
    size_bytes = response.ByteSize()
    async with aclosing(generation.events()) as events:
        async for event in events:
            if isinstance(event, Delta):
                output = outputs[event.output_index]
                output.token_ids.extend(event.token_ids)
                output.logprobs.extend(event.logprobs)
                size_bytes += event.ByteSize()
                if size_bytes > MAX_ANSWER_BYTES:
                    raise _too_large(size_bytes)
            elif isinstance(event, GenerationCompleted):
                response.usage.CopyFrom(event.usage)
                response.timings.CopyFrom(event.timings)
    for output, record in zip(outputs, generation.outputs, strict=True):
        output.text = record.text
        output.finish_reason = record.finish_reason
        if record.stop_match is not None:
            output.stop_match.CopyFrom(record.stop_match)
    check_answer_size(response, hint=_SIZE_HINT)
    return response


def _close_with(context: ServicerContext[GenerateRequest, ResponseT], held: Generation) -> None:
    """Lets go of a generation when its call ends, also where its handler is not told of that."""
    context.add_done_callback(lambda _: held.close())  # type: ignore[arg-type]  # The stub is odd.


def _to_response(event: Event) -> StreamGenerateResponse:
    if isinstance(event, Delta):
        return StreamGenerateResponse(delta=event)
    if isinstance(event, GenerationStarted):
        return StreamGenerateResponse(started=event)
    if isinstance(event, OutputFinished):
        return StreamGenerateResponse(output_finished=event)
    return StreamGenerateResponse(completed=event)


def _too_large(size_bytes: int) -> AntiphonError:
    return AntiphonError(
        ErrorReason.RESPONSE_TOO_LARGE,
        f"the answer has {size_bytes} bytes so far; a message has at most {MAX_ANSWER_BYTES}; "
        f"{_SIZE_HINT}",
        metadata={"size_bytes": str(size_bytes), "limit_bytes": str(MAX_ANSWER_BYTES)},
    )
