"""What a checkpoint says by the transformers library."""

from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from support.tiny_checkpoints import load_reference

NUM_OUTPUT_TOKENS = 32


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
