"""One streamed generation, read as events or as text."""

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from antiphon.v1 import inference_pb2, types_pb2


class GenerationStream:
    """The events of a generation, in order. Read once, as events or as text.

    Attributes:
        started: What was known before the first token; None until then.
        finished: The ends of the outputs so far, by output index.
        completed: Token counts and times; None until the end.
    """

    def __init__(
        self,
        events: AsyncIterator[inference_pb2.StreamGenerateResponse],
        cancel: Callable[[], object],
    ) -> None:
        self.started: types_pb2.GenerationStarted | None = None
        self.finished: dict[int, inference_pb2.OutputFinished] = {}
        self.completed: inference_pb2.GenerationCompleted | None = None
        self._events = events
        self._cancel = cancel

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[inference_pb2.StreamGenerateResponse]:
        return self

    async def __anext__(self) -> inference_pb2.StreamGenerateResponse:
        """Returns the next event.

        Raises:
            ServerError: the generation failed, or was cancelled.
        """
        event = await anext(self._events)
        match event.WhichOneof("event"):
            case "started":
                self.started = event.started
            case "output_finished":
                self.finished[event.output_finished.output_index] = event.output_finished
            case "completed":
                self.completed = event.completed
        return event

    async def text(self, output_index: int = 0) -> AsyncIterator[str]:
        """Yields the answer's pieces of one output; those of other outputs are passed over."""
        async for event in self:
            delta = event.delta
            if (
                delta.channel == types_pb2.OUTPUT_CHANNEL_CONTENT
                and delta.output_index == output_index
                and delta.text
            ):
                yield delta.text

    def cancel(self) -> None:
        """Stops the generation; its memory on the server is freed at once. Idempotent."""
        self._cancel()
