"""What a checkpoint says by the transformers library, and that a server says the same."""

from collections.abc import Collection, Sequence
from pathlib import Path

import torch
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
from support.server import RunningServer
from support.tiny_checkpoints import load_reference

NUM_OUTPUT_TOKENS = 32


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


@torch.inference_mode()
def reference_outputs(
    checkpoint: Path,
    prompts: Sequence[Sequence[int]],
    *,
    end_ids: Collection[int] = (),
    num_tokens: int = NUM_OUTPUT_TOKENS,
) -> list[list[int]]:
    """Returns what follows each prompt, an end id included, by the library; so many at most."""
    model = load_reference(checkpoint)
    outputs = []
    for prompt in prompts:
        whole = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=sorted(end_ids) or None,
            pad_token_id=0,
        )
        outputs.append(whole[0, len(prompt) :].tolist())
    return outputs


async def served_outputs(
    server: RunningServer, prompts: Sequence[Sequence[int]], **stop: bool | int
) -> list[Answer]:
    """Returns what the server says to each prompt, unary and streamed."""
    return [await ask(server, greedy_request(prompt, **stop)) for prompt in prompts]
