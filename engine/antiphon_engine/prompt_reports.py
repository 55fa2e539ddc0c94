"""Who is to hear how likely the tokens of a step's prompts are, and what they are told.

Work is done per chunk of a prompt, none per token: what is told are slices of arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from antiphon_engine import _native
from antiphon_engine.api.prompt_logprobs import PromptLogprobs
from antiphon_engine.prompt_scores import ScoredTokens, TokenScores
from antiphon_engine.requests import Requests
from antiphon_engine.step_executor import StepBuffers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Neighbouring tokens of one prompt that a step scores."""

    row: int
    """Of the step."""
    request_id: int
    first_position: int
    next_ids: NDArray[np.int32]
    """The prompt's, from `first_position` on."""
    num_top: int
    first_token: int
    """The place, among the step's tokens, of the one before `first_position`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step that is launched will tell of prompts."""

    parts: Sequence[_Part]
    scores: TokenScores

    def messages(self, plan: StepBuffers) -> list[PromptLogprobs]:
        """Returns the news of it once the step is committed; none of requests that have ended."""
        told = []
        begin = 0
        for part in self.parts:
            own = slice(begin, begin + len(part.next_ids))
            begin = own.stop
            if not plan["result"][part.row, 3]:
                continue
            told.append(
                PromptLogprobs(
                    request_id=part.request_id,
                    first_position=part.first_position,
                    chosen=self.scores.chosen[own].tobytes(),
                    num_top=min(part.num_top, self.scores.top_ids.shape[1]),
                    top_ids=self.scores.top_ids[own, : part.num_top].tobytes(),
                    top_logprobs=self.scores.top[own, : part.num_top].tobytes(),
                )
            )
        return told


class PromptReports:
    """Finds what a step scores. Used by the engine's one thread, once for each planned step."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def parts_of(self, plan: StepBuffers) -> list[_Part]:
        """Returns what a planned step scores, each token of a prompt once in its life.

        A request that was paused may compute tokens again: they have been told.
        """
        num_rows = int(plan["header"][_native.HEADER_NUM_ROWS])
        num_decode_rows = int(plan["header"][_native.HEADER_NUM_DECODE_ROWS])
        if num_rows == num_decode_rows:
            return []
        asked = plan["flags"][num_decode_rows:num_rows] & _native.FLAG_PROMPT_LOGPROBS
        parts = (
            self._part_of(plan, num_decode_rows + row) for row in np.flatnonzero(asked).tolist()
        )
        return [part for part in parts if part is not None]

    def _part_of(self, plan: StepBuffers, row: int) -> _Part | None:
        active = self._requests.owner(int(plan["handle"][row]))
        if active is None:
            # A guided request that has failed while its row was computed.
            return None
        start, first = int(plan["ctx_len"][row]), active.next_scored
        end = min(start + int(plan["q_len"][row]) + 1, active.prompt_size)
        if first >= end:
            return None
        assert start < first, f"token {first} of a prompt has no logits: what is before was reused"
        active.next_scored = end
        return _Part(
            row=row,
            request_id=active.request_id,
            first_position=first,
            next_ids=active.prompt[first:end],
            num_top=active.request.prompt_logprobs or 0,
            first_token=int(plan["cu_q"][row]) + first - 1 - start,
        )


def scored_tokens(parts: Sequence[_Part]) -> ScoredTokens:
    """Returns the tokens of all parts, in order; there is one part at least."""
    return ScoredTokens(
        rows=np.concatenate(
            [part.first_token + np.arange(len(part.next_ids), dtype=np.int64) for part in parts]
        ),
        next_ids=np.concatenate([part.next_ids for part in parts]).astype(np.int64),
        with_top=any(part.num_top for part in parts),
    )
