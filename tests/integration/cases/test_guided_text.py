"""Text within constraints and behind thinking: decoding, stops, entries and ends hold there too.

The model is scripted and thinks; a constraint forces what it says where the script would not.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import GenerateRequest, StreamGenerateResponse
from antiphon.v1.types_pb2 import (
    Constraint,
    Conversation,
    FinishReason,
    GenerationConfig,
    Prompt,
    ReasoningConfig,
    StopConditions,
    StopMatch,
)

from support.answers import LIMIT_S, REPLACEMENT, Answer, ask, ask_in_session
from support.canary import Canary
from support.forced_texts import Speaker
from support.session_rows import user
from support.thinking_speakers import choice, config_of, thinking_speaker
from support.tiny_tokenizers import save_byte_level_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

STOP = FinishReason.FINISH_REASON_STOP
STOP_SEQUENCE = FinishReason.FINISH_REASON_STOP_SEQUENCE
OUT_OF_TOKENS = FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS
CANCELLED = FinishReason.FINISH_REASON_CANCELLED
TEXTS = (
    "où déjà été",
    "北京。再见。",
    "🧭🛰",
    "👩‍🚀 + 🏳️‍🌈",
    "ราตรีสวัสดิ์",
    "n\u0303 is not ñ",
    "🇲🇽 there",
    "bell\u0007 \u007f",
)
NEVER = "z" * 40


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Speaker, Canary]]:
    directory = tmp_path_factory.mktemp("guided")
    async with thinking_speaker(
        directory, "byte_level", save_byte_level_tokenizer, step_delay_s=0.001
    ) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def speaker(one: tuple[Speaker, Canary]) -> AsyncIterator[Speaker]:
    """A server that says what it is told to; each test leaves it as it was."""
    yield one[0]
    await one[1].check_rest()


def thought(
    speaker: Speaker, thinking: Sequence[int], answer: Sequence[int], *, opens: bool = True
) -> list[int]:
    """What a model says that thinks first.

    Under a constraint the prompt opens the thinking: that the model would is not sure.
    """
    opener = [speaker.token_id("<think>")] * opens
    closer = speaker.token_id("</think>")
    return [*opener, *thinking, closer, *speaker.spell("\n\n"), *answer, speaker.end_id]


def told(speaker: Speaker, token_ids: Sequence[int], config: GenerationConfig) -> GenerateRequest:
    """Asks a question whose answer is these tokens, as far as the constraint lets them be."""
    speaker.answer_turns(token_ids)
    conversation = Conversation(items=[user("Any.")])
    return GenerateRequest(prompt=Prompt(conversation=conversation), config=config)


def forced(speaker: Speaker, token_ids: Sequence[int], config: GenerationConfig) -> GenerateRequest:
    """Asks without a conversation, so that nothing is thinking."""
    return GenerateRequest(prompt=speaker.prompt_for([*token_ids, speaker.end_id]), config=config)


def check_whole(answer: Answer) -> None:
    assert not any(REPLACEMENT in piece for piece in answer.pieces)


@pytest.mark.parametrize("text", TEXTS)
async def test_characters_are_never_cut_within_a_constraint(speaker: Speaker, text: str) -> None:
    request = forced(speaker, speaker.spell(text), config_of(choice(*TEXTS)))

    answer = await ask(speaker.server, request)

    check_whole(answer)
    assert answer.text == text
    assert answer.output.finish_reason == STOP
    assert answer.output.token_ids == [*speaker.spell(text), speaker.end_id]


@pytest.mark.parametrize("text", TEXTS[::3])
async def test_what_must_be_said_is_said_in_whole_characters_whatever_the_model_wants(
    speaker: Speaker, text: str
) -> None:
    answer = await ask(speaker.server, forced(speaker, [3, 4], config_of(choice(text))))

    check_whole(answer)
    assert answer.text == text
    assert answer.output.finish_reason == STOP


@pytest.mark.parametrize("text", TEXTS[::2])
@pytest.mark.parametrize("constraint", [None, choice(*TEXTS)], ids=["free", "guided"])
async def test_characters_are_never_cut_in_thinking_and_behind_it(
    speaker: Speaker, text: str, constraint: Constraint | None
) -> None:
    spelled = speaker.spell(text)
    token_ids = thought(speaker, spelled, spelled, opens=constraint is None)
    config = config_of(constraint)

    answer = await ask(speaker.server, told(speaker, token_ids, config))
    _, turn = await ask_in_session(speaker.server, "Any.", config)

    check_whole(answer)
    for output in (answer.output, turn.output):
        assert (output.reasoning, output.text) == (text, text)
        assert output.finish_reason == STOP
        assert output.token_ids == token_ids


STOPPED = {
    "inside_one_token": ("count one two three four", [" three"]),
    "over_many_tokens": ("red green QXZJKWV blue", ["QXZJKWV"]),
    "two_with_one_beginning": ("mnomnp mnoq rest", ["mnoq", "mnor"]),
    "at_the_very_beginning": ("HALTed at once", ["HALT"]),
    "at_the_very_end": ("said and done FIN", ["FIN"]),
    "never": ("nothing of the kind", ["zebra", "kinder"]),
    "a_character_of_many_bytes": ("n東京m", ["京"]),
}


def check_stopped(
    speaker: Speaker, answer: Answer, *, text: str, stops: Sequence[str], include: bool
) -> None:
    hits = [(text.find(stop), stop) for stop in stops if stop in text]
    if not hits:
        assert answer.text == text
        assert answer.output.finish_reason == STOP
        assert answer.output.stop_match == StopMatch(token_id=speaker.end_id)
        return
    ((start, stop),) = hits
    assert answer.text == text[: start + len(stop) * include]
    assert answer.output.finish_reason == STOP_SEQUENCE
    assert answer.output.stop_match == StopMatch(text=stop)
    check_whole(answer)


@pytest.mark.parametrize("name", STOPPED)
async def test_a_stop_string_ends_what_is_within_a_constraint(speaker: Speaker, name: str) -> None:
    text, stops = STOPPED[name]
    include = len(stops) > 1 or name == "over_many_tokens"
    stop = StopConditions(stop_strings=stops, include_stop_string=include)
    config = config_of(choice(*(text for text, _ in STOPPED.values())), stop)

    answer = await ask(speaker.server, forced(speaker, speaker.spell(text), config))

    check_stopped(speaker, answer, text=text, stops=stops, include=include)


async def test_stop_strings_in_the_prompt_stop_nothing(speaker: Speaker) -> None:
    config = config_of(choice("STA"), StopConditions(stop_strings=["BASTA"]))
    request = GenerateRequest(prompt=Prompt(text="say BASTA or BA"), config=config)
    assert (await ask(speaker.server, request)).text == "STA"


@pytest.mark.parametrize("name", list(STOPPED)[::2])
@pytest.mark.parametrize("guided", [False, True], ids=["free", "guided"])
async def test_a_stop_string_is_looked_for_behind_the_thinking_only(
    speaker: Speaker, name: str, guided: bool
) -> None:
    text, stops = STOPPED[name]
    constraint = choice(*(text for text, _ in STOPPED.values())) if guided else None
    config = config_of(constraint, StopConditions(stop_strings=stops))
    thinking = speaker.spell(f"{text}, {stops[0]}?")
    token_ids = thought(speaker, thinking, speaker.spell(text), opens=not guided)

    answer = await ask(speaker.server, told(speaker, token_ids, config))

    assert answer.output.reasoning == f"{text}, {stops[0]}?"
    check_stopped(speaker, answer, text=text, stops=stops, include=False)


HELD = ["UN TROI", "b <t", "<think", "in 京"]
HELD_STOPS = ["TROIS", "<think>", "<tool_call>", "aabaabaabc", "京都"]


@pytest.mark.parametrize("text", HELD)
async def test_text_held_back_within_a_constraint_is_not_lost(speaker: Speaker, text: str) -> None:
    """Ended by the end token, and by the budget at every place."""
    token_ids = speaker.spell(text)
    for num_tokens in range(1, len(token_ids) + 2):
        stop = StopConditions(stop_strings=HELD_STOPS, max_output_tokens=num_tokens)

        request = forced(speaker, token_ids, config_of(choice(*HELD), stop))
        answer = await ask(speaker.server, request)

        assert answer.text == speaker.reference.decode(token_ids[:num_tokens])
        ended = num_tokens > len(token_ids)
        assert answer.output.finish_reason == (STOP if ended else OUT_OF_TOKENS)


@pytest.mark.parametrize("thinking", ["so <", "</thi", "京"])
@pytest.mark.parametrize("guided", [False, True], ids=["free", "guided"])
async def test_text_held_back_in_thinking_is_not_lost(
    speaker: Speaker, thinking: str, guided: bool
) -> None:
    """Ended by the budget at every place; what began like a marker and was none is thinking."""
    token_ids = thought(speaker, speaker.spell(thinking), speaker.spell("yes"), opens=not guided)
    num_thinking = len(speaker.spell(thinking))
    for num_tokens in range(1, len(token_ids) + 1):
        stop = StopConditions(max_output_tokens=num_tokens)
        config = config_of(choice("yes", "no") if guided else None, stop)

        answer = await ask(speaker.server, told(speaker, token_ids, config))

        num_opening = 0 if guided else 1
        said = speaker.spell(thinking)[: num_tokens - num_opening]
        assert answer.output.reasoning == speaker.reference.decode(said)
        answered = max(0, num_tokens - num_opening - num_thinking - len("x\n\n"))
        assert answer.text == "yes"[:answered]
        ended = num_tokens == len(token_ids)
        assert answer.output.finish_reason == (STOP if ended else OUT_OF_TOKENS)


@pytest.mark.parametrize("stops", [[], [NEVER]], ids=["plain", "held"])
@pytest.mark.parametrize("guided", [False, True], ids=["free", "guided"])
@pytest.mark.parametrize("thinks", [False, True], ids=["answers", "thinks"])
async def test_entries_keep_step_with_the_tokens(
    speaker: Speaker, stops: list[str], guided: bool, thinks: bool
) -> None:
    config = config_of(
        choice("naïve 京, and so on") if guided else None,
        StopConditions(stop_strings=stops),
        top_logprobs=3,
    )
    spelled = speaker.spell("naïve 京, and so on")
    if thinks:
        token_ids = thought(speaker, speaker.spell("hm, 京 <"), spelled, opens=not guided)
        request = told(speaker, token_ids, config)
    else:
        token_ids = [*spelled, speaker.end_id]
        request = forced(speaker, spelled, config)

    answer = await ask(speaker.server, request)

    entries = answer.output.logprobs
    assert answer.output.token_ids == token_ids
    assert [entry.chosen.token_id for entry in entries] == token_ids
    assert all(len(entry.top) == 3 for entry in entries)
    assert all(t.logprob <= 0 for entry in entries for t in (entry.chosen, *entry.top))
    assert answer.usage.output_tokens == len(entries)
    assert answer.text == "naïve 京, and so on"


@pytest.mark.parametrize("show", [False, True], ids=["hidden", "shown"])
async def test_control_tokens_have_no_place_within_a_constraint(
    speaker: Speaker, show: bool
) -> None:
    wanted = [
        *speaker.spell("as "),
        speaker.token_id("<|im_start|>"),
        *speaker.spell("you"),
        speaker.token_id("<tool_call>"),
    ]
    config = config_of(choice("as you wish"), special_tokens=show)

    answer = await ask(speaker.server, forced(speaker, wanted, config))

    end = speaker.reference.id_to_token(speaker.end_id)
    assert answer.text == "as you wish" + end * show
    assert answer.output.finish_reason == STOP


async def test_a_control_tokens_name_can_be_asked_for_as_text(speaker: Speaker) -> None:
    name = "say <|im_end|> and </think>"
    config = config_of(choice(name))

    answer = await ask(speaker.server, forced(speaker, speaker.spell(name), config))

    assert answer.text == name
    assert answer.output.token_ids == [*speaker.spell(name), speaker.end_id]


GUIDED_ENDS = {
    "grammar": (StopConditions(), STOP),
    "stop_string": (StopConditions(stop_strings=["-b"]), STOP_SEQUENCE),
    "budget": (StopConditions(max_output_tokens=3), OUT_OF_TOKENS),
    "one_token": (StopConditions(max_output_tokens=1), OUT_OF_TOKENS),
}


@pytest.mark.parametrize("name", [*GUIDED_ENDS, "stop_token"])
@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("thinks", [False, True], ids=["answers", "thinks"])
async def test_each_output_within_a_constraint_ends_once_with_usage_once(
    speaker: Speaker, name: str, num_outputs: int, thinks: bool
) -> None:
    stop_ids = [speaker.spell("b")[0]]
    by_token = (StopConditions(stop_token_ids=stop_ids), STOP_SEQUENCE)
    stop, reason = GUIDED_ENDS.get(name, by_token)
    config = config_of(Constraint(regex="a-b-c"), stop)
    spelled = speaker.spell("a-b-c")
    if thinks:
        request = told(speaker, thought(speaker, speaker.spell("hm"), spelled, opens=False), config)
    else:
        request = forced(speaker, spelled, config)
    request.num_outputs = num_outputs

    answer = await ask(speaker.server, request)

    assert [output.finish_reason for output in answer.outputs] == [reason] * num_outputs
    assert len({output.text for output in answer.outputs}) == 1
    assert answer.usage.output_tokens == sum(len(output.token_ids) for output in answer.outputs)


@pytest.mark.parametrize("num_outputs", [1, 3])
async def test_a_cancelled_call_within_a_constraint_brings_nothing_more(
    speaker: Speaker, num_outputs: int
) -> None:
    config = config_of(Constraint(regex="(ab){200}"), StopConditions(max_output_tokens=400))
    request = forced(speaker, speaker.spell("ab") * 40, config)
    request.num_outputs = num_outputs
    call = speaker.server.inference.StreamGenerate(request, timeout=LIMIT_S)
    read: list[StreamGenerateResponse] = []
    while sum(response.HasField("delta") for response in read) < 4:
        read.append(await call.read())

    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call.read()
    assert not any(response.HasField("completed") for response in read)


async def test_thinking_that_has_had_its_time_is_ended_and_the_answer_keeps_to_its_constraint(
    speaker: Speaker,
) -> None:
    config = config_of(choice("yes", "no"))
    config.reasoning.CopyFrom(ReasoningConfig(max_tokens=4))
    thinking = speaker.spell("on and on and on")
    token_ids = thought(speaker, thinking, speaker.spell("yes"), opens=False)

    answer = await ask(speaker.server, told(speaker, token_ids, config))

    assert answer.output.reasoning == "on a"
    assert answer.text in ("yes", "no")
    assert answer.output.finish_reason == STOP
