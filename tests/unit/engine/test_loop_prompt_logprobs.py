"""The loop where requests want to hear of their prompts: what is told, and how often."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import (
    Cancel,
    FinishReason,
    Hold,
    Release,
    StopParams,
)
from antiphon_engine.api.prompt_logprobs import PromptLogprobs
from support.loop_harness import Heard, LoopHarness, request, running_loop
from support.scripted_engine import Script, ScriptedExecutor

SMALL = EngineConfig(block_tokens=8, max_rows=4, max_step_tokens=24, kv_cache_tokens=192)
TEXT = list(range(20, 60))
SCRIPT = Script(texts={"*": TEXT})
PROMPT = [(7 * i + 3) % 1000 for i in range(61)]
AHEAD = pytest.mark.parametrize("ahead", [0, 1, 2])
STOP = StopParams(max_output_tokens=4)


def expected(prompt: Sequence[int], first: int = 1) -> torch.Tensor:
    """Log-probabilities of all tokens at the positions from `first` on: [N, V]."""
    model = ScriptedExecutor(SCRIPT, SMALL)
    logits = [model.logits_behind(token_id) for token_id in prompt[first - 1 : -1]]
    return torch.log_softmax(torch.stack(logits), dim=-1)


def check_told(
    parts: Sequence[PromptLogprobs], prompt: Sequence[int], *, num_top: int, first: int = 1
) -> None:
    """Checks that all positions from `first` on were told, once, in order, and as they are."""
    at = first
    for part in parts:
        assert part.first_position == at
        assert part.num_top == num_top
        at += part.num_positions
    assert at == len(prompt)
    logprobs = expected(prompt, first)
    chosen = torch.tensor([value for part in parts for value in array("f", part.chosen)])
    assert torch.equal(chosen, logprobs.gather(1, torch.tensor(prompt[first:])[:, None])[:, 0])
    top = [value for part in parts for value in array("f", part.top_logprobs)]
    top_ids = [token_id for part in parts for token_id in array("i", part.top_ids)]
    likeliest = torch.topk(logprobs, 20, dim=-1)
    assert torch.tensor(top).tolist() == likeliest.values[:, :num_top].flatten().tolist()
    assert top_ids == likeliest.indices[:, :num_top].flatten().tolist()


def cached(heard: Heard, request_id: int) -> int:
    [started] = heard.started[request_id]
    return started.cached_prompt_tokens


@AHEAD
@pytest.mark.parametrize("chunk_tokens", [0, 8])
def test_a_prompt_is_told_chunk_by_chunk(chunk_tokens: int, ahead: int) -> None:
    config = replace(SMALL, chunk_tokens=chunk_tokens, run_ahead=ahead)
    with running_loop(SCRIPT, config) as harness:
        harness.submit(1, request(*PROMPT, stop=STOP, prompt_logprobs=3))
        harness.run()

        check_told(harness.heard.prompts[1], PROMPT, num_top=3)
        assert len(harness.heard.prompts[1]) == (8 if chunk_tokens else 3)
        assert harness.heard.tokens[1, 0] == TEXT[:4]


@AHEAD
def test_what_is_cached_is_computed_again_for_who_wants_to_hear_of_it(ahead: int) -> None:
    with running_loop(SCRIPT, replace(SMALL, run_ahead=ahead)) as harness:
        for request_id, num_top in enumerate((None, 0, None, 20)):
            harness.submit(request_id, request(*PROMPT, stop=STOP, prompt_logprobs=num_top))
            harness.run()

        assert [cached(harness.heard, request_id) for request_id in range(4)] == [0, 0, 60, 0]
        check_told(harness.heard.prompts[1], PROMPT, num_top=0)
        check_told(harness.heard.prompts[3], PROMPT, num_top=20)
        assert set(harness.heard.prompts) == {1, 3}


def test_batch_mates_hear_each_of_their_own() -> None:
    prompts = [PROMPT[:9], PROMPT[20:27], PROMPT[5:50], PROMPT[40:42]]
    with running_loop(SCRIPT, SMALL) as harness:
        for request_id, prompt in enumerate(prompts):
            asked = None if request_id == 1 else 2 * request_id
            harness.submit(request_id, request(*prompt, stop=STOP, prompt_logprobs=asked))
        harness.run()

        for request_id in (0, 2, 3):
            check_told(
                harness.heard.prompts[request_id], prompts[request_id], num_top=2 * request_id
            )
        assert not harness.heard.prompts[1]


def test_several_outputs_are_told_of_their_prompt_once() -> None:
    with running_loop(SCRIPT, SMALL) as harness:
        harness.submit(1, request(*PROMPT, stop=STOP, num_outputs=3, prompt_logprobs=1))
        harness.run()

        check_told(harness.heard.prompts[1], PROMPT, num_top=1)
        assert [harness.heard.tokens[1, index] for index in range(3)] == 3 * [TEXT[:4]]


def test_a_prompt_of_one_token_has_nothing_to_be_told() -> None:
    with running_loop(SCRIPT, SMALL) as harness:
        harness.submit(1, request(5, stop=STOP, prompt_logprobs=1))
        harness.run()

        assert not harness.heard.prompts
        assert harness.heard.tokens[1, 0] == TEXT[:4]


@pytest.mark.parametrize("num_told", [1, 2, 8, 9, 30, 60])
def test_what_is_known_already_is_not_told_and_may_come_from_the_cache(num_told: int) -> None:
    with running_loop(SCRIPT, SMALL) as harness:
        harness.submit(1, request(*PROMPT, stop=STOP))
        harness.run()
        asked = request(*PROMPT, stop=STOP, prompt_logprobs=2, num_told_positions=num_told)
        harness.submit(2, asked)
        harness.run()

        check_told(harness.heard.prompts[2], PROMPT, num_top=2, first=num_told)
        assert cached(harness.heard, 2) == num_told - 1


def test_where_all_is_known_nothing_is_computed_again() -> None:
    with running_loop(SCRIPT, SMALL) as harness:
        harness.submit(1, request(*PROMPT, stop=STOP))
        harness.run()
        asked = request(*PROMPT, stop=STOP, prompt_logprobs=2, num_told_positions=len(PROMPT))
        harness.submit(2, asked)
        harness.run()

        assert not harness.heard.prompts
        assert cached(harness.heard, 2) == 60


def test_output_from_before_is_no_prompt() -> None:
    with running_loop(SCRIPT, SMALL) as harness:
        harness.submit(1, request(*PROMPT, *TEXT[:2], stop=STOP, num_resumed=2, prompt_logprobs=2))
        harness.run()

        check_told(harness.heard.prompts[1], PROMPT, num_top=2)


@AHEAD
def test_a_request_that_has_ended_is_told_no_more(ahead: int) -> None:
    with running_loop(SCRIPT, replace(SMALL, run_ahead=ahead)) as harness:
        harness.submit(1, request(*PROMPT, stop=STOP, prompt_logprobs=2))
        harness.step()
        harness.send(Cancel(request_id=1))
        harness.step()
        # Whoever gets the place of the first one must not be told in its name.
        harness.submit(2, request(*PROMPT[:20], stop=STOP))
        harness.run()

        assert harness.heard.reasons(1) == [FinishReason.CANCELLED]
        assert set(harness.heard.prompts) <= {1}


def disturb(harness: LoopHarness, rng: random.Random, request_ids: range) -> None:
    """Runs all requests to their ends, with holds in between."""
    held: set[int] = set()
    for _ in range(60):
        request_id = rng.choice(request_ids)
        if request_id in held:
            held.remove(request_id)
            harness.send(Release(request_id=request_id))
        else:
            held.add(request_id)
            harness.send(Hold(request_id=request_id))
        for _ in range(rng.choice((0, 1, 1, 2))):
            harness.step()
    harness.send(*(Release(request_id=request_id) for request_id in held))
    harness.run()


@AHEAD
@pytest.mark.parametrize("host_cache_bytes", [0, 4096])
@pytest.mark.parametrize("prefix_reuse", [True, False])
def test_holds_pauses_and_lost_blocks_make_no_difference(
    prefix_reuse: bool, host_cache_bytes: int, ahead: int
) -> None:
    config = replace(
        SMALL,
        run_ahead=ahead,
        prefix_reuse=prefix_reuse,
        host_cache_bytes=host_cache_bytes,
        capacity_policy="max_utilization",
        fault_pause_every=5,
        # Little more than one of them needs.
        kv_cache_tokens=96,
    )
    prompts = [[*PROMPT[: 8 * i + 3], *PROMPT[i : 40 - 4 * i]] for i in range(5)]
    with running_loop(SCRIPT, config) as harness:
        for request_id, prompt in enumerate(prompts):
            asked = request(*prompt, stop=STOP, num_outputs=1 + request_id % 2, prompt_logprobs=2)
            harness.submit(request_id, asked)
        disturb(harness, random.Random(ahead), range(len(prompts)))

        for request_id, prompt in enumerate(prompts):
            check_told(harness.heard.prompts[request_id], prompt, num_top=2)
            assert harness.heard.tokens[request_id, 0] == TEXT[:4]
        stats = harness.stats()
        assert stats.num_recomputed_tokens_total > 0
        assert stats.num_blocks_used == 0
