"""Streams of a server that is measured: when their tokens come, what they say, what they cost."""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from antiphon.v1 import types_pb2

from antiphon_client import Client
from antiphon_client.errors import ServerError
from support.process_figures import cpu_time_ns
from support.serve_command import children_of


@dataclass(slots=True, kw_only=True)
class Streamed:
    """One stream and how it ended."""

    arrivals_s: list[float] = field(default_factory=list)
    """When its pieces came, on the monotonic clock."""
    text: str = ""
    end: str = ""
    """The finish reason, or the failure's."""
    message: str = ""
    num_tokens: int = 0

    def gaps_s(self, begin_s: float, end_s: float) -> Iterator[float]:
        """Yields the times between pieces, of those gaps that touch a span of time."""
        for before_s, after_s in zip(self.arrivals_s, self.arrivals_s[1:], strict=False):
            if after_s >= begin_s and before_s <= end_s:
                yield after_s - before_s


async def stream(
    client: Client,
    prompt: str | types_pb2.Prompt,
    config: types_pb2.GenerationConfig,
    limit_s: float,
    streamed: Streamed | None = None,
) -> Streamed:
    """Runs a generation to its end, whatever that is; tells it in `streamed` as it goes on."""
    streamed = streamed or Streamed()
    try:
        async for event in client.stream_generate(prompt, config, timeout_s=limit_s):
            match event.WhichOneof("event"):
                case "delta":
                    streamed.arrivals_s.append(time.monotonic())
                    streamed.text += event.delta.text
                case "output_finished":
                    streamed.end = types_pb2.FinishReason.Name(event.output_finished.finish_reason)
                case "completed":
                    streamed.num_tokens = event.completed.usage.output_tokens
    except ServerError as error:
        streamed.end, streamed.message = error.reason or type(error).__name__, str(error)
    return streamed


async def streams(
    client: Client,
    prompts: Sequence[str | types_pb2.Prompt],
    configs: Sequence[types_pb2.GenerationConfig],
    limit_s: float,
) -> list[Streamed]:
    """Runs generations side by side."""
    calls = [
        stream(client, prompt, config, limit_s)
        for prompt, config in zip(prompts, configs, strict=True)
    ]
    return list(await asyncio.gather(*calls))


def server_cpu_s() -> float:
    """Returns the time on a core of the server that this process started, and of all below it."""
    (server,) = children_of(os.getpid())
    return sum(map(cpu_time_ns, _tree(server))) / 1e9


def _tree(process_id: int) -> Iterator[int]:
    yield process_id
    for child in children_of(process_id):
        yield from _tree(child)
