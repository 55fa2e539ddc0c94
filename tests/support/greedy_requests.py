"""Greedy requests of token ids to a server."""

from collections.abc import Sequence

from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import (
    GenerationConfig,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
    TokenIds,
)

from support.answers import Answer, ask
from support.greedy_reference import NUM_OUTPUT_TOKENS
from support.server import RunningServer


def greedy_request(prompt_ids: Sequence[int], **stop: bool | int) -> GenerateRequest:
    """Asks for the likeliest tokens, NUM_OUTPUT_TOKENS at most unless told otherwise."""
    return GenerateRequest(
        prompt=Prompt(token_ids=TokenIds(ids=prompt_ids)),
        config=GenerationConfig(
            sampling=SamplingParams(temperature=0),
            stop=StopConditions(**({"max_output_tokens": NUM_OUTPUT_TOKENS} | stop)),
            output=OutputOptions(token_ids=True),
        ),
    )


async def served_outputs(
    server: RunningServer, prompts: Sequence[Sequence[int]], **stop: bool | int
) -> list[Answer]:
    """Returns what the server says to each prompt, unary and streamed."""
    return [await ask(server, greedy_request(prompt, **stop)) for prompt in prompts]
