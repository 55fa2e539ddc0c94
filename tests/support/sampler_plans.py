"""Sampling of hand-made steps: what a row's request asks for, and the plan that leads to it."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from antiphon_engine.api.messages import GenerationRequest, SamplingParams, StopParams
from antiphon_engine.grammar.masking import StepMasks
from antiphon_engine.sampler import Sampled, Sampler, StepSampler, sampling_flags
from antiphon_engine.step_executor import StepBuffers


@dataclass(slots=True, kw_only=True)
class Row:
    """A request that samples one token a step."""

    sampling: SamplingParams
    prompt: list[int] = field(default_factory=lambda: [1])
    stop: StopParams = field(default_factory=lambda: StopParams(max_output_tokens=100))
    top_logprobs: int | None = None
    output: list[int] = field(default_factory=list)

    @property
    def request(self) -> GenerationRequest:
        return GenerationRequest(
            prompt=np.array(self.prompt, np.int32).tobytes(),
            sampling=self.sampling,
            stop=self.stop,
            top_logprobs=self.top_logprobs,
        )


class SampledBatch:
    """Rows that live in the slots of one sampler; row i is in slot i."""

    def __init__(
        self, rows: list[Row], *, vocabulary_size: int, sampler: StepSampler | None = None
    ) -> None:
        self.rows = rows
        self._sampler = sampler or Sampler(num_slots=len(rows), vocabulary_size=vocabulary_size)
        for slot, row in enumerate(rows):
            self.assign(slot, row)

    def assign(self, slot: int, row: Row) -> None:
        """Gives a slot to a new row."""
        self.rows[slot] = row
        self._sampler.assign_slot(
            slot,
            row.request,
            prompt=np.array(row.prompt, np.int32),
            output=np.array(row.output, np.int32),
        )

    def sample(
        self,
        logits: NDArray[np.float32],
        *,
        slots: list[int] | None = None,
        uniform: float | NDArray[np.float64] = 0.5,
        masks: StepMasks | None = None,
    ) -> Sampled:
        """Samples a token in each of `slots` from its row of `logits`, and notes it as output."""
        slots = list(range(len(self.rows))) if slots is None else slots
        plan = self.plan(slots, np.broadcast_to(uniform, len(slots)))
        sampled = self._sampler.sample(torch.from_numpy(logits.copy()), plan, masks)
        for slot, token_id in zip(slots, sampled.tokens.tolist(), strict=True):
            self.rows[slot].output.append(token_id)
        return sampled

    def plan(self, slots: list[int], uniform: NDArray[np.float64]) -> StepBuffers:
        num_rows = len(slots)
        rows = [self.rows[slot] for slot in slots]
        plan: StepBuffers = {}  # type: ignore[typeddict-item]
        plan["header"] = np.zeros(16, np.int32)
        plan["header"][0] = num_rows
        plan["slot"] = np.array(slots, np.int32)
        plan["flags"] = np.array([sampling_flags(row.request) for row in rows], np.uint32)
        plan["output_position"] = np.array([len(row.output) for row in rows], np.int32)
        plan["uniform"] = np.array(uniform, np.float64)
        plan["sample_indptr"] = np.arange(num_rows + 1, dtype=np.int32)
        return plan
