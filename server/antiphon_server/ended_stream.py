"""Outputs that were whole before their request is started: a crash came between them and their end.

No engine hears of such a request.
"""

from collections.abc import Callable, Sequence
from typing import Final

from antiphon_engine.api.handle import OutputNews, RequestNews, TakeTokens, take_nothing
from antiphon_engine.api.messages import FinishReason, StopParams


def end_of_tokens(token_ids: Sequence[int], stop: StopParams) -> FinishReason | None:
    """Returns why an output that consists of these tokens has ended, as an engine tells it.

    None: it has not.
    """
    if not token_ids:
        return None
    if token_ids[-1] in stop.end_ids:
        return FinishReason.END_ID
    if token_ids[-1] in stop.stop_ids:
        return FinishReason.STOP_ID
    return FinishReason.MAX_OUTPUT_TOKENS if len(token_ids) >= stop.max_output_tokens else None


class EndedStream:
    """The RequestStream of a request whose one output is whole: it tells the end, and no token."""

    def __init__(self, ended: FinishReason, *, clock_ns: Callable[[], int]) -> None:
        """Sets why the output has ended, and the monotonic clock."""
        self._ended: Final = ended
        self._clock_ns = clock_ns

    async def next(self, take: TakeTokens = take_nothing) -> RequestNews:
        """See RequestStream; never waits."""
        del take
        return RequestNews(
            cached_prompt_tokens=0,
            first_step_ns=self._clock_ns(),
            outputs={0: OutputNews(ended=self._ended)},
        )

    def finish_output(self, output_index: int, keep_tokens: int) -> None:
        """See RequestStream; it has ended."""

    def cancel(self) -> None:
        """See RequestStream; it has ended."""

    def hold(self) -> None:
        """See RequestStream; it has ended."""

    def release(self) -> None:
        """See RequestStream; it has ended."""

    def close(self) -> None:
        """See RequestStream; it has nothing."""
