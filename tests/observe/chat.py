"""A chat with the default model: three turns of a session, then requests side by side."""

import asyncio
import time
from dataclasses import dataclass

import grpc
from antiphon.v1 import inference_pb2_grpc, types_pb2

from antiphon_client import Client, Session, generate_request, json_schema
from observe.span_tree import Answer

CONVERSE = "antiphon.v1.SessionService/Converse"
_LIMIT_S = 300.0
_NOTES = (
    "Antiphon serves language models over gRPC. Sessions live on the server, so that a turn "
    "computes only what is new. A batching engine decides in C++ and computes with torch. "
    "Each turn is told as one span, with queue, prefill and decode below it. "
)
_CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city", "country"],
}
_NUM_IDLE_TURNS = 10
_QUESTIONS = ("a river", "a lamp", "a bridge", "an orchard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """What was said."""

    session: str
    answers: list[Answer]


async def chat(target: str) -> Chat:
    """Talks, and returns what the client knows of each answer."""
    async with Client(target) as client, client.new_session() as session:
        said = [
            (f"{_NOTES * 12}\nSum this up in one sentence.", _config(48)),
            ("Say it in five words.", _config(24)),
            ("Name a capital and its country.", _config(48, json_schema(_CITY))),
        ]
        waits_s = [await _turn(session, text, config) for text, config in said]
        places = [turn.traceparent async for turn in session.turns()]
        name = session.name
        idle_wait_s = await _idle_wait_s(client)
    answers = [
        Answer(traceparent=place, call=CONVERSE, wait_s=wait_s, idle_wait_s=idle_wait_s)
        for place, wait_s in zip(places, waits_s, strict=True)
    ]
    await single_requests(target)
    return Chat(session=name, answers=answers)


async def single_requests(target: str, *, max_tokens: int = 24) -> None:
    """Sends some requests without a session at the same time."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def ask(subject: str) -> None:
            request = generate_request(f"Describe {subject}.", _config(max_tokens))
            async for _ in stub.StreamGenerate(request, timeout=_LIMIT_S):
                pass

        await asyncio.gather(*(ask(subject) for subject in _QUESTIONS))


async def _turn(session: Session, text: str, config: types_pb2.GenerationConfig) -> float:
    """Runs a turn; returns the time from its sending to its end, in seconds."""
    begin_s = time.perf_counter()
    turn = await session.send(text, config)
    await turn.end()
    return time.perf_counter() - begin_s


async def _idle_wait_s(client: Client) -> float:
    """Returns what a turn that asks for no answer takes at most, from its sending to its end."""
    waits_s = []
    async with client.new_session() as session:
        for _ in range(_NUM_IDLE_TURNS):
            begin_s = time.perf_counter()
            turn = await session.append("Nothing is asked.")
            await turn.end()
            waits_s.append(time.perf_counter() - begin_s)
    return max(waits_s)


def _config(
    max_tokens: int, constraint: types_pb2.Constraint | None = None
) -> types_pb2.GenerationConfig:
    return types_pb2.GenerationConfig(
        sampling=types_pb2.SamplingParams(temperature=0),
        stop=types_pb2.StopConditions(max_output_tokens=max_tokens),
        constraint=constraint,
    )
