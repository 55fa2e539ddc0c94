"""Engine links with a scripted process behind them, and how to read them to the end."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import AntiphonError
from antiphon_engine.api.handle import EngineState, RequestStream
from antiphon_engine.api.link import EngineLink
from antiphon_engine.api.messages import (
    CoreStats,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    StopParams,
)
from support.engine_zygote import fork_script
from support.scripted_engine import Script

END = 2
TEXT = [5, 6, 7, 8, END]
TEXT_AND_END = [*TEXT, -FinishReason.END_ID]
"""As `read_all` tells it."""
LIMIT_S = 60.0


def request(*prompt: int, max_output_tokens: int = 20, num_outputs: int = 1) -> GenerationRequest:
    return GenerationRequest(
        prompt=array("i", prompt).tobytes(),
        sampling=SamplingParams(seed=7, temperature=0.0),
        stop=StopParams(max_output_tokens=max_output_tokens, end_ids=(END,)),
        num_outputs=num_outputs,
    )


def endless(*prompt: int) -> GenerationRequest:
    return GenerationRequest(
        prompt=array("i", prompt).tobytes(),
        sampling=SamplingParams(seed=7, temperature=0.0),
        stop=StopParams(max_output_tokens=100_000),
    )


@asynccontextmanager
async def running(
    tmp_path: Path,
    script: Script,
    *,
    write: Callable[[Path, Script], list[str]] = fork_script,
    **config: float,
) -> AsyncIterator[EngineLink]:
    link = await EngineLink.start(
        EngineConfig(restart_delay_s=0.05, **config),
        tmp_path,
        command=write(tmp_path / "script.json", script),
    )
    try:
        yield link
    finally:
        await link.close()


async def read_all(stream: RequestStream, num_outputs: int = 1) -> dict[int, list[int]]:
    """Reads to the end; the reasons are at the ends of the lists, as negative numbers."""
    tokens: dict[int, list[int]] = {i: [] for i in range(num_outputs)}
    num_open = num_outputs
    async with asyncio.timeout(LIMIT_S):
        while num_open:
            for i, output in (await stream.next()).outputs.items():
                tokens[i] += output.token_ids
                if output.ended is not None:
                    tokens[i].append(-output.ended)
                    num_open -= 1
    return tokens


async def until(state: EngineState, link: EngineLink) -> None:
    reached = asyncio.Event()
    link.on_state_change(lambda now: reached.set() if now is state else None)
    async with asyncio.timeout(LIMIT_S):
        if link.state is not state:
            await reached.wait()


async def failure_of(stream: RequestStream) -> AntiphonError:
    """Reads until the request fails and returns the failure."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                await stream.next()
            except AntiphonError as error:
                return error


async def at_rest(link: EngineLink) -> CoreStats:
    """Returns the counters once nothing runs."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            stats = await link.stats()
            if not stats.num_running + stats.num_waiting + stats.num_paused + stats.num_held:
                return stats
            await asyncio.sleep(0.01)
