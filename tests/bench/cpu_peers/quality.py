"""How often the likeliest next token is the one that float32 has, for each form of weights.

The text is this repository's licence, read in windows; every position of a window counts but its
first. What is compared with is the same checkpoint, computed by PyTorch in float32.
"""

import gc
import math
from array import array
from typing import Any

import numpy as np

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import SamplingParams, StopParams
from antiphon_engine.executor import Executor
from antiphon_engine.loading import describe
from bench.cpu_peers.catalog import QUANTIZATIONS, Machine, own_settings
from bench.cpu_peers.prompts import text_ids
from support.loop_harness import request, running_loop_of

_WINDOW_TOKENS = 384
_NUM_WINDOWS = 4
_KV_TOKENS = 4096


class Seen:
    """What one engine makes of the text."""

    def __init__(self) -> None:
        self.likeliest: list[int] = []
        self.logprobs: list[float] = []
        """Of the text's own tokens."""

    @property
    def perplexity(self) -> float:
        """How many tokens it is undecided between."""
        return math.exp(-float(np.mean(self.logprobs)))


def measure(machine: Machine, *, quick: bool) -> dict[str, Any]:
    """Measures each form, prints it, and returns top-1 agreement and perplexity by form."""
    ids = text_ids(machine.checkpoint, ("LICENSE",))
    num_windows = 1 if quick else _NUM_WINDOWS
    windows = [ids[i * _WINDOW_TOKENS :][:_WINDOW_TOKENS] for i in range(num_windows)]
    plain = EngineConfig(dtype="float32", cpu_kernels="torch", kv_cache_tokens=_KV_TOKENS)
    exact = read_text(machine, plain, windows)
    print(f"float32: perplexity {exact.perplexity:.4f}, {len(exact.likeliest)} positions")
    found = {}
    for weights in QUANTIZATIONS:
        config = EngineConfig(**own_settings(weights, machine), kv_cache_tokens=_KV_TOKENS)
        seen = read_text(machine, config, windows)
        same = np.equal(seen.likeliest, exact.likeliest)
        found[weights] = {
            "top1": round(float(np.mean(same)), 4),
            "perplexity_ratio": round(seen.perplexity / exact.perplexity, 4),
        }
        print(f"{weights}: {found[weights]}", flush=True)
    return found | {"positions": len(exact.likeliest)}


def read_text(machine: Machine, config: EngineConfig, windows: list[list[int]]) -> Seen:
    """Returns what an engine with these settings makes of windows of text."""
    seen = Seen()
    model = describe(Executor(config, machine.checkpoint))
    with running_loop_of(model, config, checkpoint=str(machine.checkpoint)) as harness:
        for request_id, window in enumerate(windows, start=1):
            asked = request(
                *window,
                prompt_logprobs=1,
                sampling=SamplingParams(seed=0, temperature=0.0),
                stop=StopParams(max_output_tokens=1),
            )
            harness.submit(request_id, asked)
            while (request_id, 0) not in harness.heard.ended:
                harness.step_or_wait()
            for part in harness.heard.prompts[request_id]:
                seen.likeliest += array("i", part.top_ids)
                seen.logprobs += array("f", part.chosen)
    del model
    gc.collect()
    return seen
