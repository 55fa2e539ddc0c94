"""The events of a generation as the contract's messages."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.v1.inference_pb2 import OutputFinished, StreamGenerateResponse, ToolCallReady
from antiphon.v1.types_pb2 import Delta, GenerationStarted, PromptPart

from antiphon_server.generation import Event, Generation


async def stream_events(generation: Generation) -> AsyncGenerator[StreamGenerateResponse, None]:
    """Yields what a generation tells, as it happens; may be called once.

    Raises:
        AntiphonError: the request failed.
    """
    async with aclosing(generation.events()) as events:
        async for event in events:
            yield _to_response(event)


def _to_response(event: Event) -> StreamGenerateResponse:
    if isinstance(event, Delta):
        return StreamGenerateResponse(delta=event)
    if isinstance(event, GenerationStarted):
        return StreamGenerateResponse(started=event)
    if isinstance(event, PromptPart):
        return StreamGenerateResponse(prompt_part=event)
    if isinstance(event, ToolCallReady):
        return StreamGenerateResponse(tool_call=event)
    if isinstance(event, OutputFinished):
        return StreamGenerateResponse(output_finished=event)
    return StreamGenerateResponse(completed=event)
