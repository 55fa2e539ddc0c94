"""The least number of tokens, against everything that can end an answer."""

import pytest
from antiphon.v1.types_pb2 import FinishReason, SamplingParams, StopConditions, StopMatch

from support.answers import ask, ask_in_session
from support.forced_texts import Speaker
from support.sampling_calls import check_refused, request_for
from support.server import RunningServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

LEAST = 8
STOP = FinishReason.FINISH_REASON_STOP
STOP_SEQUENCE = FinishReason.FINISH_REASON_STOP_SEQUENCE
OUT_OF_BUDGET = FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
TEMPERATURES = pytest.mark.parametrize("temperature", [0, 1])
ORDINARY = 600
"""A token that ends nothing by itself."""


def wanting(*token_ids: int, temperature: float = 0) -> SamplingParams:
    """Returns parameters under which these tokens are as good as certain."""
    return SamplingParams(
        temperature=temperature, seed=9, logit_bias=dict.fromkeys(token_ids, 100.0)
    )


def end_ids_of(server: RunningServer) -> list[int]:
    end_ids = sorted(server.model.end_ids)
    assert len(end_ids) == 2, "one from the checkpoint, one from the tokenizer"
    return end_ids


@TEMPERATURES
@pytest.mark.parametrize("which", [0, 1])
async def test_no_end_token_comes_before_the_least(
    tiny: RunningServer, which: int, temperature: float
) -> None:
    end_id = end_ids_of(tiny)[which]
    stop = StopConditions(max_output_tokens=24, min_output_tokens=LEAST)
    request = request_for(wanting(end_id, temperature=temperature), stop=stop)

    answer = await ask(tiny, request)
    _, turn = await ask_in_session(tiny, "Hello.", request.config)

    for output in (answer.output, turn.output):
        assert not set(output.token_ids[:LEAST]) & set(end_ids_of(tiny))
        assert output.token_ids[LEAST:] == [end_id]
        assert output.finish_reason == STOP
        assert output.stop_match == StopMatch(token_id=end_id)
    assert answer.usage.output_tokens == LEAST + 1


@TEMPERATURES
async def test_no_stop_token_of_the_callers_comes_before_the_least(
    tiny: RunningServer, temperature: float
) -> None:
    stop = StopConditions(
        max_output_tokens=24, min_output_tokens=LEAST, stop_token_ids=[ORDINARY, 601]
    )
    request = request_for(wanting(ORDINARY, 601, temperature=temperature), stop=stop)

    answer = await ask(tiny, request)
    _, turn = await ask_in_session(tiny, "Hello.", request.config)

    for output in (answer.output, turn.output):
        assert not set(output.token_ids[:LEAST]) & {ORDINARY, 601}
        assert len(output.token_ids) == LEAST + 1
        assert output.token_ids[-1] in (ORDINARY, 601)
        assert output.finish_reason == STOP_SEQUENCE


async def test_without_a_least_the_first_end_token_ends(tiny: RunningServer) -> None:
    end_id = end_ids_of(tiny)[0]

    answer = await ask(
        tiny, request_for(wanting(end_id), stop=StopConditions(max_output_tokens=24))
    )

    assert answer.output.token_ids == [end_id]
    assert answer.output.finish_reason == STOP
    assert answer.text == ""


async def test_stop_string_does_not_wait_for_the_least(speaker: Speaker) -> None:
    token_ids = [*speaker.spell("ab. never said"), speaker.end_id]
    stop = StopConditions(min_output_tokens=LEAST, stop_strings=["."])
    request = request_for(SamplingParams(temperature=0), stop=stop)
    request.prompt.CopyFrom(speaker.prompt_for(token_ids))
    speaker.answer_turns(token_ids)

    answer = await ask(speaker.server, request)
    _, turn = await ask_in_session(speaker.server, "Well?", request.config)

    for output in (answer.output, turn.output):
        assert output.text == "ab"
        assert output.token_ids == token_ids[:3]
        assert output.finish_reason == STOP_SEQUENCE
        assert output.stop_match == StopMatch(text=".")


async def test_model_that_wants_to_end_at_once_says_something_else(speaker: Speaker) -> None:
    stop = StopConditions(max_output_tokens=24, min_output_tokens=LEAST)
    request = request_for(SamplingParams(temperature=0), stop=stop)
    request.prompt.CopyFrom(speaker.prompt_for([speaker.end_id]))

    answer = await ask(speaker.server, request)

    assert len(answer.output.token_ids) == LEAST + 1
    assert list(answer.output.token_ids).index(speaker.end_id) == LEAST


@TEMPERATURES
async def test_every_end_token_is_ordinary_where_they_are_ignored(
    tiny: RunningServer, temperature: float
) -> None:
    end_ids = end_ids_of(tiny)
    for least in (0, LEAST, 24):
        stop = StopConditions(max_output_tokens=24, min_output_tokens=least, ignore_eos=True)

        request = request_for(wanting(*end_ids, temperature=temperature), stop=stop)
        answer = await ask(tiny, request)

        assert set(answer.output.token_ids) <= set(end_ids)
        assert answer.usage.output_tokens == 24
        assert answer.output.finish_reason == OUT_OF_BUDGET


@pytest.mark.parametrize("least", [0, LEAST])
async def test_stop_tokens_of_the_callers_are_not_ignored_with_the_end_tokens(
    tiny: RunningServer, least: int
) -> None:
    end_id, other_end_id = end_ids_of(tiny)
    for stop_id, wanted in ((ORDINARY, [ORDINARY]), (end_id, [end_id]), (end_id, [other_end_id])):
        stop = StopConditions(
            max_output_tokens=24,
            min_output_tokens=least,
            ignore_eos=True,
            stop_token_ids=[stop_id],
        )

        answer = await ask(tiny, request_for(wanting(*wanted), stop=stop))

        if wanted == [stop_id]:
            assert answer.output.token_ids[least:] == [stop_id]
            assert answer.output.finish_reason == STOP_SEQUENCE
            assert answer.output.stop_match == StopMatch(token_id=stop_id)
        else:
            assert answer.output.token_ids == wanted * 24
            assert answer.output.finish_reason == OUT_OF_BUDGET


@TEMPERATURES
async def test_least_that_is_the_most_makes_just_as_many(
    tiny: RunningServer, temperature: float
) -> None:
    end_ids = end_ids_of(tiny)
    stop = StopConditions(
        max_output_tokens=LEAST, min_output_tokens=LEAST, stop_token_ids=[ORDINARY]
    )
    request = request_for(wanting(*end_ids, ORDINARY, temperature=temperature), stop=stop)

    answer = await ask(tiny, request)
    _, turn = await ask_in_session(tiny, "Hello.", request.config)

    for output in (answer.output, turn.output):
        assert len(output.token_ids) == LEAST
        assert not {*end_ids, ORDINARY} & set(output.token_ids)
        assert output.finish_reason == OUT_OF_BUDGET


async def test_each_output_has_the_least(tiny: RunningServer) -> None:
    end_id = end_ids_of(tiny)[0]
    stop = StopConditions(max_output_tokens=24, min_output_tokens=LEAST)
    request = request_for(wanting(end_id, temperature=1), stop=stop, num_outputs=3)

    answer = await ask(tiny, request)

    assert [len(output.token_ids) for output in answer.outputs] == [LEAST + 1] * 3
    assert answer.usage.output_tokens == 3 * (LEAST + 1)


async def test_more_than_the_most_is_refused(tiny: RunningServer) -> None:
    stop = StopConditions(max_output_tokens=LEAST, min_output_tokens=LEAST + 1)
    request = request_for(SamplingParams(temperature=0), stop=stop)

    await check_refused(tiny, request, "stop.min_output_tokens")
