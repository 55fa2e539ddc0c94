"""Calls that each bring a name of their own, of all that callers can name."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import grpc
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.inference_pb2_grpc import InferenceServiceStub
from antiphon.v1.session_pb2 import RunTurnRequest
from antiphon.v1.session_pb2_grpc import SessionServiceStub
from antiphon.v1.types_pb2 import GenerationConfig, Prompt, StopConditions

from support.traces import turn

Stranger = Callable[[int], "grpc.aio.Call"]
AT_A_TIME = 20


def strangers(channel: grpc.aio.Channel) -> Mapping[str, Stranger]:
    """What makes a call of a number, by what has the name; two of the five are served."""
    inference, sessions = InferenceServiceStub(channel), SessionServiceStub(channel)
    config = GenerationConfig(stop=StopConditions(max_output_tokens=1, ignore_eos=True))
    asked = GenerateRequest(prompt=Prompt(text="one two three"), config=config)
    return {
        "model": lambda index: inference.Generate(
            GenerateRequest(model=f"models/m{index}", prompt=Prompt(text="a"))
        ),
        "tenant": lambda index: inference.Generate(
            asked, metadata=[("x-tenant", f"t{index}"), ("authorization", f"Bearer {index}")]
        ),
        "session": lambda index: sessions.RunTurn(
            RunTurnRequest(session=f"sessions/s{index}", turn=turn(f"t{index}"))
        ),
        "method": lambda index: channel.unary_unary(f"/antiphon.v1.InferenceService/M{index}")(b""),
        "metadata": lambda index: inference.Generate(
            asked, metadata=[(f"x-m{index}", "1"), ("user-id", f"u{index}")]
        ),
    }


async def call_all(channel: grpc.aio.Channel, numbers: Sequence[int]) -> None:
    """Makes the calls of all numbers, of each kind, some at a time; waits for their ends."""
    for call in strangers(channel).values():
        for start in range(0, len(numbers), AT_A_TIME):
            some = numbers[start : start + AT_A_TIME]
            await asyncio.gather(*(_ended(call(index)) for index in some))


async def _ended(call: grpc.aio.Call) -> None:
    try:
        if isinstance(call, grpc.aio.UnaryUnaryCall):
            await call
        else:
            async for _ in call:
                pass
    except grpc.aio.AioRpcError:
        pass
