"""The workloads: what is sent, and what of it is told.

All is drawn from fixed seeds, so every engine gets the same prompts. Times are those of whoever
drives the engine, between its steps.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.offline_bench.driver import Brought, OfflineEngine
from antiphon_engine.offline_bench.shapes import DecodeShape, MixShape, PrefillShape

Figures = dict[str, object]

_SPECIAL_IDS = 1000
"""Ids at both ends of a vocabulary that prompts keep clear of."""


@dataclass(slots=True)
class Sent:
    """A request and when its tokens came."""

    at_s: float
    token_times_s: list[float] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        """From the request to its first token."""
        return self.token_times_s[0] - self.at_s

    @property
    def gaps_s(self) -> NDArray[np.float64]:
        """Between tokens."""
        return np.diff(self.token_times_s)


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Requests that were sent at once, to their ends."""

    start_s: float
    end_s: float
    sent: Sequence[Sent]
    steps: Sequence[tuple[float, int]]
    """Of each step when it came, and how many tokens it brought."""

    @property
    def wall_s(self) -> float:
        """From the first request to the last token."""
        return self.end_s - self.start_s


def draw_prompts(
    seed: int, lengths: Sequence[int], vocabulary_size: int
) -> list[NDArray[np.int32]]:
    """Returns prompts of these lengths."""
    random = np.random.default_rng(seed)
    least = min(_SPECIAL_IDS, vocabulary_size // 4)
    return [
        random.integers(least, vocabulary_size - least, size=length).astype(np.int32)
        for length in lengths
    ]


def run_batch(
    engine: OfflineEngine, prompts: Sequence[NDArray[np.int32]], outputs: Sequence[int]
) -> BatchRun:
    """Sends requests and runs them to their ends."""
    sent: dict[int, Sent] = {}
    steps: list[tuple[float, int]] = []
    start_s = time.perf_counter()
    for prompt, num_output in zip(prompts, outputs, strict=True):
        at_s = time.perf_counter()
        sent[engine.add(prompt, num_output)] = Sent(at_s)
    num_left = len(sent)
    while num_left:
        brought = engine.step()
        if brought is None:
            continue
        note(brought, sent)
        steps.append((brought.at_s, len(brought.request_ids)))
        num_left -= len(brought.ended)
    return BatchRun(start_s, time.perf_counter(), list(sent.values()), steps)


def note(brought: Brought, sent: dict[int, Sent]) -> None:
    """Notes when tokens came."""
    for request_id in brought.request_ids:
        sent[request_id].token_times_s.append(brought.at_s)


def measure_decode(
    engine: OfflineEngine, shape: DecodeShape, batch_size: int, *, seed: int = 0
) -> Figures:
    """Measures steps in which all requests of a batch generate, away from the batch's ends."""
    lengths = [shape.context_tokens] * batch_size
    prompts = draw_prompts(1000 + batch_size + seed, lengths, engine.vocabulary_size)
    engine.clear_times()
    run = run_batch(engine, prompts, [shape.output_tokens] * batch_size)
    full_s = [at_s for at_s, num_tokens in run.steps if num_tokens == batch_size]
    gaps_s = np.diff(full_s)
    if len(full_s) > 16:
        gaps_s = gaps_s[4:-2]
    return {
        "batch_size": batch_size,
        "step_ms_median": _ms(np.median(gaps_s)) if gaps_s.size else None,
        "step_ms_p99": percentile_ms(gaps_s, 99),
        "tokens_per_s": round(batch_size / float(gaps_s.mean()), 1) if gaps_s.size else None,
        "num_steps": len(gaps_s),
        "wall_s": round(run.wall_s, 3),
        **engine.step_times(),
    }


def measure_prefill(
    engine: OfflineEngine, shape: PrefillShape, num_prompts: int, *, seed: int
) -> Figures:
    """Measures prompts of which one token is wanted."""
    prompts = draw_prompts(5000 + seed, [shape.prompt_tokens] * num_prompts, engine.vocabulary_size)
    engine.clear_times()
    run = run_batch(engine, prompts, [1] * num_prompts)
    return {
        "num_prompts": num_prompts,
        "prompt_tokens": shape.prompt_tokens,
        "tokens_per_s": round(num_prompts * shape.prompt_tokens / run.wall_s, 1),
        "first_token_ms_mean": _ms(np.mean([sent.first_token_s for sent in run.sent])),
        "wall_s": round(run.wall_s, 4),
        **engine.step_times(),
    }


def measure_mix(engine: OfflineEngine, shape: MixShape, *, seed: int = 42) -> Figures:
    """Measures requests of any length that come at once."""
    random = np.random.default_rng(seed)

    def lengths(bounds: tuple[int, int]) -> list[int]:
        return [int(n) for n in random.integers(bounds[0], bounds[1] + 1, size=shape.num_requests)]

    num_in, num_out = lengths(shape.prompt_tokens), lengths(shape.output_tokens)
    prompts = draw_prompts(seed + 1, num_in, engine.vocabulary_size)
    engine.clear_times()
    run = run_batch(engine, prompts, num_out)
    gaps_s = np.concatenate([sent.gaps_s for sent in run.sent])
    first_s = [sent.first_token_s for sent in run.sent]
    return {
        "num_requests": shape.num_requests,
        "prompt_tokens": sum(num_in),
        "output_tokens": sum(num_out),
        "wall_s": round(run.wall_s, 3),
        "output_tokens_per_s": round(sum(num_out) / run.wall_s, 1),
        "total_tokens_per_s": round((sum(num_in) + sum(num_out)) / run.wall_s, 1),
        "num_steps": len(run.steps),
        "gap_ms_mean": _ms(gaps_s.mean()) if gaps_s.size else None,
        "gap_ms_p50": percentile_ms(gaps_s, 50),
        "gap_ms_p99": percentile_ms(gaps_s, 99),
        "gap_ms_max": percentile_ms(gaps_s, 100),
        "first_token_ms_mean": _ms(np.mean(first_s)),
        "first_token_ms_p99": percentile_ms(first_s, 99),
        **engine.step_times(),
    }


def percentile_ms(seconds: "Sequence[float] | NDArray[np.float64]", percent: float) -> float | None:
    """Returns a percentile in milliseconds; None of nothing."""
    return _ms(np.percentile(np.asarray(seconds), percent)) if len(seconds) else None


def _ms(seconds: "float | np.floating") -> float:
    return round(1000 * float(seconds), 3)
