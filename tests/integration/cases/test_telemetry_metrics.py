"""Metrics beside what clients see: cases G7-O3 and G7-O4."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import CreateSessionRequest, RunTurnRequest, StartTurn
from antiphon.v1.types_pb2 import GenerationConfig, OutputOptions, Prompt, StopConditions

from support.fake_engine import FakeEngine
from support.scrapes import scrape
from support.server import RunningServer, running_server
from support.session_rows import user
from support.strangers import call_all
from support.traces import submitted

LISTEN = "telemetry.prometheus_listen=127.0.0.1:0"
STEP_S = 0.05
NUM_REQUESTS = 100
NUM_STRANGERS = 100
"""Of each kind, over the wire; ten thousand records are counted where counting is tried."""
MAX_NEW_SERIES = 50
FIRST = "gen_ai_server_time_to_first_token_seconds"
PER_TOKEN = "gen_ai_server_time_per_output_token_seconds"
INTER_TOKEN = "antiphon_request_inter_token_latency_seconds"


@dataclass(slots=True)
class Seen:
    """What a client notes of its requests."""

    num_first: int = 0
    num_with_more: int = 0
    num_between: int = 0
    first_token_s: float = 0.0
    """All times to first tokens together, as the client measures them."""
    sent_ns: list[int] = field(default_factory=list)

    def note(self, first_s: float, num_tokens: list[int]) -> None:
        self.num_first += 1
        self.first_token_s += first_s
        self.num_with_more += max(num_tokens) > 1
        self.num_between += sum(num - 1 for num in num_tokens)


def asked(num_tokens: int, num_outputs: int = 1) -> GenerateRequest:
    return GenerateRequest(
        prompt=Prompt(text="one two three"), num_outputs=num_outputs, config=config(num_tokens)
    )


def config(num_tokens: int) -> GenerationConfig:
    return GenerationConfig(
        stop=StopConditions(max_output_tokens=num_tokens, ignore_eos=True),
        output=OutputOptions(token_ids=True),
    )


async def read(call: grpc.aio.UnaryStreamCall, num_outputs: int, seen: Seen) -> None:
    sent_s, first_s, nums = time.monotonic(), 0.0, [0] * num_outputs
    async for event in call:
        if event.delta.token_ids:
            first_s = first_s or time.monotonic() - sent_s
            nums[event.delta.output_index] += len(event.delta.token_ids)
    seen.note(first_s, nums)


async def send_all(server: RunningServer, engine: FakeEngine, seen: Seen) -> None:
    """Sends requests of every kind to an engine that holds still, and lets it run then."""
    readers, to_cancel = [], []
    for index in range(NUM_REQUESTS):
        seen.sent_ns.append(time.monotonic_ns())
        kind = index % 5
        if kind == 0:
            session = f"s{index}"
            await server.sessions.CreateSession(CreateSessionRequest(session_id=session))
            seen.sent_ns[-1] = time.monotonic_ns()
            start = StartTurn(turn_id="t", items=[user("hi")], config=config(3))
            run = RunTurnRequest(session=f"sessions/{session}", turn=start)
            readers.append(asyncio.create_task(read(server.sessions.RunTurn(run), 1, seen)))
        elif kind == 1:
            to_cancel.append(server.inference.StreamGenerate(asked(3)))
            asyncio.ensure_future(to_cancel[-1].read()).add_done_callback(_ignore)
        else:
            num_tokens, num_outputs = {2: (1, 1), 3: (3, 2), 4: (4, 1)}[kind]
            call = server.inference.StreamGenerate(asked(num_tokens, num_outputs))
            readers.append(asyncio.create_task(read(call, num_outputs, seen)))
        await submitted(engine, index + 1)
    for call in to_cancel:
        call.cancel()
    async with asyncio.timeout(60):
        while engine.num_waiting > len(readers):  # noqa: ASYNC110 - the fake has no event for it
            await asyncio.sleep(0)
    engine.release()
    await asyncio.gather(*readers)


def _ignore(read: "asyncio.Future[object]") -> None:
    if not read.cancelled():
        read.exception()


async def test_times_to_tokens_agree_with_what_clients_see(tmp_path: Path):
    engine, seen = FakeEngine(max_running=40, step_interval_s=STEP_S), Seen()
    engine.hold()
    async with running_server(tmp_path, engine=engine, settings=[LISTEN]) as server:
        await send_all(server, engine, seen)

        told = await scrape(server.server.metering.address)

    assert told.sum(f"{FIRST}_count") == seen.num_first == NUM_REQUESTS * 4 // 5
    assert told.sum(f"{PER_TOKEN}_count") == seen.num_with_more
    assert told.sum(f"{INTER_TOKEN}_count") == seen.num_between
    assert told.sum("antiphon_requests_total", outcome="cancelled") == NUM_REQUESTS // 5
    # From what was sent to the engine's own stamps: nothing of the network's way back is in it.
    true_s = sum(
        (stream.first_token_ns - sent_ns) / 1e9
        for stream, sent_ns in zip(engine.requests, seen.sent_ns, strict=True)
        if stream.first_token_ns
    )
    assert 0.9 * true_s <= told.sum(f"{FIRST}_sum") <= min(true_s, seen.first_token_s)
    # A step apart, so none is in the buckets below.
    assert told.sum(f"{PER_TOKEN}_bucket", le="0.025") == 0
    assert told.sum(f"{INTER_TOKEN}_sum") >= seen.num_between * STEP_S * 0.9


async def test_names_from_callers_make_no_series(tmp_path: Path):
    async with running_server(tmp_path, settings=[LISTEN]) as server:
        await server.inference.Generate(asked(1))
        before = await scrape(server.server.metering.address)
        await call_all(server.channel, range(1))
        once = await scrape(server.server.metering.address)

        await call_all(server.channel, range(1, NUM_STRANGERS))
        after = await scrape(server.server.metering.address)

    assert len(after.series) - len(before.series) <= MAX_NEW_SERIES
    assert set(after.series) == set(once.series)
    failed = "antiphon_call_failures_total"
    assert after.sum(failed, reason="MODEL_NOT_FOUND") == NUM_STRANGERS
    assert after.sum(failed, reason="SESSION_NOT_FOUND") == NUM_STRANGERS
    calls = "rpc_server_call_duration_seconds_count"
    assert after.sum(calls, rpc_method="_OTHER") == NUM_STRANGERS
    assert after.sum("antiphon_requests_total", outcome="completed") == 2 * NUM_STRANGERS + 1
    assert not [labels for _, labels in after.series if {"session", "user"} & set(dict(labels))]
