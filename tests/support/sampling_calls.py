"""Requests that sample from a tiny model, many at a time if need be."""

import asyncio
from collections.abc import Sequence

import grpc
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest, StreamGenerateResponse
from antiphon.v1.types_pb2 import (
    GenerationConfig,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)

from antiphon_engine.api import messages
from support.answers import LIMIT_S, ask_in_session
from support.server import RunningServer, details_of

PROMPT = tuple(range(300, 340))


def request_for(
    sampling: SamplingParams,
    *,
    prompt: Sequence[int] = PROMPT,
    stop: StopConditions | None = None,
    num_tokens: int = 24,
    num_outputs: int = 1,
) -> GenerateRequest:
    """Returns a request that reports token ids; it ends by its budget unless `stop` is given."""
    return GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=prompt)),
        config=config_for(sampling, stop=stop, num_tokens=num_tokens),
        num_outputs=num_outputs,
    )


def config_for(
    sampling: SamplingParams, *, stop: StopConditions | None = None, num_tokens: int = 24
) -> GenerationConfig:
    return GenerationConfig(
        sampling=sampling,
        stop=stop or StopConditions(max_output_tokens=num_tokens, ignore_eos=True),
        output=OutputOptions(token_ids=True, prompt_token_ids=True),
    )


def in_the_engines_words(sampling: SamplingParams) -> messages.SamplingParams:
    """Returns the parameters for the reference; those that are unset take the contract's values."""
    defaults = SamplingParams(temperature=1, top_p=1, repetition_penalty=1)
    defaults.MergeFrom(sampling)
    return messages.SamplingParams(
        temperature=defaults.temperature,
        top_k=defaults.top_k,
        top_p=defaults.top_p,
        min_p=defaults.min_p,
        presence_penalty=defaults.presence_penalty,
        frequency_penalty=defaults.frequency_penalty,
        repetition_penalty=defaults.repetition_penalty,
        logit_bias=dict(defaults.logit_bias),
        seed=defaults.seed,
    )


class RunningCall:
    """A stream of one output that is read in the background."""

    def __init__(self, server: RunningServer, request: GenerateRequest) -> None:
        self._call = server.inference.StreamGenerate(request, timeout=LIMIT_S)
        self._begun = asyncio.Event()
        self._reading = asyncio.create_task(self._read())
        self.seed = 0

    async def begun(self) -> None:
        """Waits for the first piece."""
        async with asyncio.timeout(LIMIT_S):
            await self._begun.wait()

    async def token_ids(self) -> list[int]:
        """Returns all there is once it has ended."""
        return await self._reading

    async def _read(self) -> list[int]:
        token_ids: list[int] = []
        response: StreamGenerateResponse
        async for response in self._call:
            if response.HasField("started"):
                self.seed = response.started.seed
            if response.HasField("delta"):
                self._begun.set()
                token_ids += response.delta.token_ids
        return token_ids


async def token_ids_of(server: RunningServer, request: GenerateRequest) -> list[int]:
    """Returns what one unary request generates."""
    answer = await server.inference.Generate(request, timeout=LIMIT_S)
    (output,) = answer.outputs
    return list(output.token_ids)


async def check_refused(server: RunningServer, request: GenerateRequest, field: str) -> None:
    """Checks that every method refuses a request, and names the field below `config`."""
    for call in (
        server.inference.Generate(request, timeout=LIMIT_S),
        server.inference.StreamGenerate(request, timeout=LIMIT_S).read(),
        ask_in_session(server, "Well?", request.config),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        fields = [v.field for v in details_of(caught.value)["BadRequest"].field_violations]
        assert [name[name.index("config.") :] for name in fields] == [f"config.{field}"]
