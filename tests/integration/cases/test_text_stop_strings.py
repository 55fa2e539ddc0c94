"""Stop strings end the text where they begin, however their characters came, and lose nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    OutputOptions,
    Prompt,
    SamplingParams,
    StopConditions,
    StopMatch,
)

from support.answers import ask, ask_in_session
from support.forced_texts import Speaker
from support.server import details_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

GREEDY = SamplingParams(temperature=0)
STOP_SEQUENCE = FinishReason.FINISH_REASON_STOP_SEQUENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the model says, and what shall end it."""

    text: str
    stops: Sequence[str]
    prompt: str = ""


CASES = {
    "inside_one_token": Case(text="count one two three four", stops=[" three"]),
    "inside_a_token_that_goes_on": Case(text="the morning after", stops=["orn"]),
    "over_many_tokens": Case(text="red green QXZJKWV blue", stops=["QXZJKWV"]),
    "two_with_one_beginning": Case(text="mnomnp mnoq rest", stops=["mnoq", "mnor"]),
    "one_inside_the_other": Case(text="so wonderful it is", stops=["wonderful", "der"]),
    "two_that_end_together": Case(text="over and out", stops=["and", " and", "d"]),
    "overlapping_itself": Case(text="aabaabaaab!", stops=["aabaaab"]),
    "at_the_very_beginning": Case(text="HALTed at once", stops=["HALT"]),
    "at_the_very_end": Case(text="said and done FIN", stops=["FIN"]),
    "all_there_is": Case(text="FIN", stops=["FIN"]),
    "never": Case(text="nothing of the kind", stops=["zebra", "kinder"]),
    "a_character_of_many_bytes": Case(text="n東京m", stops=["京"]),
    "a_part_of_a_joined_character": Case(text="a 👨‍👩‍👧 b", stops=["👩"]),
    "line_breaks": Case(text="first\n\nsecond\n", stops=["\n\n"]),
    "only_in_the_prompt": Case(text="as you wish", stops=["BASTA"], prompt="never say BASTA"),
    "begun_in_the_prompt": Case(text="STA you wish", stops=["BASTA"], prompt="never say BA"),
}


def first_end(case: Case) -> tuple[int, str] | None:
    """Returns where the stop string that is complete first begins, and which it is."""
    found = [(case.text.find(stop), stop) for stop in case.stops if stop in case.text]
    if not found:
        return None
    return min(found, key=lambda hit: (hit[0] + len(hit[1]), -len(hit[1])))


def prompt_for(speaker: Speaker, case: Case, token_ids: Sequence[int]) -> Prompt:
    if not case.prompt:
        return speaker.prompt_for(token_ids)
    speaker.answer_to(speaker.encode(case.prompt), token_ids)
    return Prompt(text=case.prompt)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("split", "include"), [("as_encoded", False), ("byte_by_byte", False), ("as_encoded", True)]
)
async def test_text_ends_at_the_first_stop_string(
    speaker: Speaker, name: str, split: str, include: bool
) -> None:
    case = CASES[name]
    token_ids = speaker.spell(case.text) if split == "byte_by_byte" else speaker.encode(case.text)
    said = speaker.reference.decode(token_ids)
    if case.prompt and split == "as_encoded" and speaker.name == "byte_fallback":
        said = " " + said  # Behind a text, a word's leading blank is one.
    hit = first_end(Case(text=said, stops=case.stops))
    request = GenerateRequest(
        prompt=prompt_for(speaker, case, [*token_ids, speaker.end_id]),
        config=GenerationConfig(
            sampling=GREEDY,
            stop=StopConditions(stop_strings=case.stops, include_stop_string=include),
            output=OutputOptions(token_ids=True),
        ),
    )

    answer = await ask(speaker.server, request)

    if hit is None:
        assert answer.text == said
        assert answer.output.finish_reason == FinishReason.FINISH_REASON_STOP
        assert answer.output.stop_match == StopMatch(token_id=speaker.end_id)
        assert answer.output.token_ids == [*token_ids, speaker.end_id]
    else:
        start, stop = hit
        assert answer.text == said[: start + len(stop) * include]
        assert answer.output.finish_reason == STOP_SEQUENCE
        assert answer.output.stop_match == StopMatch(text=stop)
        kept = len(answer.output.token_ids)
        assert answer.output.token_ids == token_ids[:kept]
        assert stop in said[: start + len(stop)]
        assert answer.usage.output_tokens == kept


async def test_stop_string_ends_a_turn_and_the_next_goes_on_from_there(speaker: Speaker) -> None:
    config = GenerationConfig(
        sampling=GREEDY,
        stop=StopConditions(stop_strings=["QXZJKWV"]),
        output=OutputOptions(token_ids=True, prompt_token_ids=True),
    )
    speaker.answer_turns([*speaker.spell("red green QXZJKWV blue"), speaker.end_id])
    session, first = await ask_in_session(speaker.server, "Colours?", config)
    _, second = await ask_in_session(speaker.server, "And then?", config, session=session)

    for turn in (first, second):
        assert turn.output.text == "red green "
        assert turn.output.finish_reason == STOP_SEQUENCE
        assert turn.output.stop_match == StopMatch(text="QXZJKWV")
        assert turn.output.token_ids == speaker.spell("red green QXZJKWV")
    assert second.usage.prompt_tokens > first.usage.prompt_tokens + len(first.output.token_ids)


@pytest.mark.parametrize("text", ["UN DEUX TROI", "a < b <t", "<think", "aabaabaab", "in 京"])
async def test_text_held_back_for_a_stop_string_that_never_comes_is_not_lost(
    speaker: Speaker, text: str
) -> None:
    """Ended by the end token, and by the budget at every place."""
    stops = ["TROIS", "<think>", "<tool_call>", "aabaabaabc", "京都"]
    token_ids = speaker.encode(text)
    prompt = speaker.prompt_for([*token_ids, speaker.end_id])
    for num_tokens in range(1, len(token_ids) + 2):
        request = GenerateRequest(
            prompt=prompt,
            config=GenerationConfig(
                sampling=GREEDY,
                stop=StopConditions(stop_strings=stops, max_output_tokens=num_tokens),
            ),
        )

        answer = await ask(speaker.server, request)

        assert answer.text == speaker.reference.decode(token_ids[:num_tokens])
        assert answer.usage.output_tokens == num_tokens
        assert answer.output.finish_reason == (
            FinishReason.FINISH_REASON_STOP
            if num_tokens > len(token_ids)
            else FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
        )


async def test_beginning_of_a_marker_shows_where_nobody_stops_at_it(speaker: Speaker) -> None:
    token_ids = speaker.encode("value <")
    for stops in ([], ["<think>"]):
        request = GenerateRequest(
            prompt=speaker.prompt_for([*token_ids, speaker.end_id]),
            config=GenerationConfig(sampling=GREEDY, stop=StopConditions(stop_strings=stops)),
        )

        assert (await ask(speaker.server, request)).text == "value <"


async def test_text_held_back_is_not_lost_in_a_turn(speaker: Speaker) -> None:
    token_ids = speaker.spell("UN DEUX TROI")
    speaker.answer_turns([*token_ids, speaker.end_id])
    for budget in (len(token_ids), len(token_ids) + 1):
        config = GenerationConfig(
            sampling=GREEDY,
            stop=StopConditions(stop_strings=["TROIS"], max_output_tokens=budget),
        )

        _, turn = await ask_in_session(speaker.server, "Comptez.", config)

        assert turn.output.text == "UN DEUX TROI"


@pytest.mark.parametrize(
    ("stops", "field", "told"),
    [
        ([""], "stop_strings[0]", "1 to 256"),
        (["fine", ""], "stop_strings[1]", "1 to 256"),
        (["b"] * 100, "stop_strings", "16"),
        ([f"stop {i}" for i in range(17)], "stop_strings", "16"),
        (["y" * 257], "stop_strings[0]", "256"),
        (["y" * 100_000], "stop_strings[0]", "256"),
    ],
)
async def test_bad_stop_strings_are_refused_before_anything_is_generated(
    byte_level: Speaker, stops: list[str], field: str, told: str
) -> None:
    config = GenerationConfig(sampling=GREEDY, stop=StopConditions(stop_strings=stops))
    request = GenerateRequest(prompt=byte_level.prompt_for([byte_level.end_id]), config=config)

    for call in (
        byte_level.server.inference.Generate(request),
        byte_level.server.inference.StreamGenerate(request).read(),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        (violation,) = details_of(caught.value)["BadRequest"].field_violations
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violation.field == f"config.stop.{field}"
        assert told in violation.description
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask_in_session(byte_level.server, "Any.", config)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"config.stop.{field}" in str(details_of(caught.value)["BadRequest"])


async def test_as_many_and_as_long_stop_strings_as_may_be_are_taken(speaker: Speaker) -> None:
    text = "so it goes " + "z" * 256 + " and on"
    stops = [f"{i:x}" * 30 for i in range(15)] + ["z" * 256]
    request = GenerateRequest(
        prompt=speaker.prompt_for([*speaker.spell(text), speaker.end_id]),
        config=GenerationConfig(sampling=GREEDY, stop=StopConditions(stop_strings=stops)),
    )

    answer = await ask(speaker.server, request)

    assert answer.text == "so it goes "
    assert answer.output.stop_match == StopMatch(text="z" * 256)
