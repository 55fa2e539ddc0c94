"""Puts what a step brought, for all its requests, into one message."""

from dataclasses import dataclass

import numpy as np

from antiphon_engine import _native
from antiphon_engine.api.messages import (
    FinishReason,
    OutputEnded,
    Started,
    StepNews,
    TokenLogprobs,
)
from antiphon_engine.prompt_reports import StepReport
from antiphon_engine.requests import Requests
from antiphon_engine.row_logprobs import RowLogprobs
from antiphon_engine.step_executor import StepBuffers

FINISH_REASONS = {
    _native.FINISH_END_ID: FinishReason.END_ID,
    _native.FINISH_STOP_ID: FinishReason.STOP_ID,
    _native.FINISH_MAX_OUTPUT_TOKENS: FinishReason.MAX_OUTPUT_TOKENS,
    _native.FINISH_CONTEXT_FULL: FinishReason.CONTEXT_FULL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLogprobs:
    """What a step knows of likelihoods."""

    rows: RowLogprobs | None = None
    """Of what it drew."""
    prompts: StepReport | None = None


def collect_news(
    plan: StepBuffers,
    logprobs: StepLogprobs,
    requests: Requests,
    *,
    start_ns: int,
    end_ns: int,
) -> StepNews:
    """Returns the news of a committed step, and takes those that ended from `requests`.

    Rows whose requests ended or were paused while the step ran have a result of zeros: they bring
    nothing.
    """
    num_rows = int(plan["header"][_native.HEADER_NUM_ROWS])
    handles, result = plan["handle"][:num_rows], plan["result"][:num_rows]
    counted = result[:, 3] > 0
    requests.note_progress(handles[counted], num_tokens=result[counted, 2])
    brought = np.nonzero(result[:, 0])[0]
    request_ids, output_indices = requests.names(handles[brought])
    return StepNews(
        step=int(plan["header"][_native.HEADER_STEP_ID]),
        start_ns=start_ns,
        end_ns=end_ns,
        request_ids=request_ids.tobytes(),
        output_indices=output_indices.tobytes(),
        token_ids=plan["tokens"][brought, 0].tobytes(),
        started=_started(plan, requests, num_rows, start_ns),
        prompt_logprobs=[] if logprobs.prompts is None else logprobs.prompts.messages(plan),
        logprobs=[] if logprobs.rows is None else _logprobs(plan, logprobs.rows, requests),
        ended=_ended(plan, requests, num_rows),
    )


def _started(plan: StepBuffers, requests: Requests, num_rows: int, start_ns: int) -> list[Started]:
    started: list[Started] = []
    if num_rows == plan["header"][_native.HEADER_NUM_DECODE_ROWS]:
        return started
    for row in np.nonzero(plan["flags"][:num_rows] & _native.FLAG_FIRST)[0]:
        active = requests.owner(int(plan["handle"][row]))
        # The other outputs of a request reuse what its first computed, which is no cache hit.
        if active is not None and not active.started:
            active.started = True
            started.append(
                Started(
                    request_id=active.request_id,
                    cached_prompt_tokens=min(
                        int(plan["reused_tokens"][row]), len(active.prompt) - active.num_resumed
                    ),
                    step_start_ns=start_ns,
                )
            )
    return started


def _logprobs(plan: StepBuffers, logprobs: RowLogprobs, requests: Requests) -> list[TokenLogprobs]:
    request_ids, output_indices = requests.names(plan["handle"][logprobs.rows])
    brought = plan["result"][logprobs.rows, 0] > 0
    return [
        TokenLogprobs(
            request_id=int(request_ids[i]),
            output_index=int(output_indices[i]),
            chosen=float(logprobs.chosen[i]),
            top_ids=logprobs.top_ids[i, : logprobs.num_top[i]].tobytes(),
            top_logprobs=logprobs.top[i, : logprobs.num_top[i]].tobytes(),
        )
        for i in np.nonzero(brought)[0]
    ]


def _ended(plan: StepBuffers, requests: Requests, num_rows: int) -> list[OutputEnded]:
    reasons = plan["result"][:num_rows, 1]
    return [
        requests.end(int(plan["handle"][row]), FINISH_REASONS[int(reasons[row])])
        for row in np.nonzero(reasons != _native.FINISH_NONE)[0]
    ]
