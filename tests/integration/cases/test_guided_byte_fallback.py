"""Constraints over a tokenizer of byte tokens, whose words begin with blanks that may not show."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.types_pb2 import (
    Constraint,
    Conversation,
    FinishReason,
    GenerationConfig,
    Prompt,
    StopConditions,
    StopMatch,
)

from support.answers import REPLACEMENT, ask, ask_in_session
from support.canary import Canary
from support.forced_texts import Speaker
from support.session_rows import user
from support.thinking_speakers import choice, config_of, thinking_speaker
from support.tiny_tokenizers import save_byte_fallback_tokenizer
from support.turn_runs import greedy, new_session, run_turn

pytestmark = pytest.mark.asyncio(loop_scope="module")

STOP = FinishReason.FINISH_REASON_STOP
TEXTS = (
    "où déjà été",
    "北京。再见。",
    "👩‍🚀 + 🏳️‍🌈",
    "ราตรีสวัสดิ์",
    "n\u0303 is not ñ",
    "bell\u0007 \u007f",
)
WORDS = (" hello", "hello", "  hello", "hello ", " ", "\nhello")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Speaker, Canary]]:
    directory = tmp_path_factory.mktemp("guided_bytes")
    async with thinking_speaker(directory, "byte_fallback", save_byte_fallback_tokenizer) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def speaker(one: tuple[Speaker, Canary]) -> AsyncIterator[Speaker]:
    """A server that says what it is told to; each test leaves it as it was."""
    yield one[0]
    await one[1].check_rest()


def behind_nothing(
    speaker: Speaker, token_ids: list[int], config: GenerationConfig
) -> GenerateRequest:
    """Asks where no text stands before the answer."""
    return GenerateRequest(prompt=speaker.prompt_for([*token_ids, speaker.end_id]), config=config)


def behind_text(
    speaker: Speaker, token_ids: list[int], config: GenerationConfig
) -> GenerateRequest:
    """Asks where the answer follows a text."""
    speaker.answer_to(speaker.encode("Say it"), [*token_ids, speaker.end_id])
    return GenerateRequest(prompt=Prompt(text="Say it"), config=config)


ASKED = pytest.mark.parametrize("asked", [behind_nothing, behind_text])


@pytest.mark.parametrize("text", TEXTS)
async def test_characters_are_never_cut(speaker: Speaker, text: str) -> None:
    """Where the model wants to say it in bytes, and where it must say it against its will."""
    wants = behind_nothing(speaker, speaker.spell(text), config_of(choice(*TEXTS)))
    must = behind_nothing(speaker, [5, 6], config_of(choice(text)))

    for request in (wants, must):
        answer = await ask(speaker.server, request)
        assert answer.text == text
        assert not any(REPLACEMENT in piece for piece in answer.pieces)
        assert answer.output.finish_reason == STOP


@ASKED
@pytest.mark.parametrize("text", WORDS)
async def test_blanks_at_the_beginning_are_part_of_the_answer(
    speaker: Speaker, text: str, asked
) -> None:
    for wanted, options in ((speaker.spell(text), WORDS), ([5, 6], [text])):
        request = asked(speaker, wanted, config_of(choice(*options)))

        answer = await ask(speaker.server, request)

        assert answer.text == text
        assert answer.output.finish_reason == STOP


@ASKED
async def test_values_are_what_their_schema_says(speaker: Speaker, asked) -> None:
    value = {" a": "北 京", "b": [" hello", "hello"]}
    schema = Constraint(json_schema=json.dumps({"const": value}), compact_json=True)

    answer = await ask(speaker.server, asked(speaker, speaker.encode("hello"), config_of(schema)))

    assert json.loads(answer.text) == value
    assert answer.output.finish_reason == STOP


async def test_entries_keep_step_with_the_text(speaker: Speaker) -> None:
    config = config_of(choice("so it is 京"), top_logprobs=2)

    answer = await ask(speaker.server, behind_text(speaker, speaker.encode("no"), config))

    entries = answer.output.logprobs
    written = b"".join(entry.chosen.token for entry in entries[:-1])
    assert written.decode() == answer.text == "so it is 京"
    assert [entry.chosen.token_id for entry in entries] == answer.output.token_ids


@pytest.mark.parametrize(("stop", "kept"), [("京", "so 北"), (" 北", "so"), ("so", "")])
async def test_a_stop_string_ends_it(speaker: Speaker, stop: str, kept: str) -> None:
    config = config_of(choice("so 北京 it is"), StopConditions(stop_strings=[stop]))

    answer = await ask(speaker.server, behind_nothing(speaker, [5], config))

    assert answer.text == kept
    assert answer.output.stop_match == StopMatch(text=stop)


async def test_the_answer_holds_behind_thinking_and_both_are_whole(speaker: Speaker) -> None:
    closer = speaker.token_id("</think>")
    speaker.answer_turns(
        [*speaker.spell("北 so"), closer, *speaker.spell("\n\n東"), speaker.end_id]
    )
    config = config_of(choice("東", "京"))
    conversation = Prompt(conversation=Conversation(items=[user("Any.")]))

    answer = await ask(speaker.server, GenerateRequest(prompt=conversation, config=config))
    _, turn = await ask_in_session(speaker.server, "Any.", config)

    for output in (answer.output, turn.output):
        assert (output.reasoning, output.text) == ("北 so", "東")


@pytest.mark.parametrize("text", ["hello", " hello"])
async def test_kept_ids_stay_as_they_were_generated(speaker: Speaker, text: str) -> None:
    """In bytes, as no encoder would write them."""
    config = greedy(40)
    config.constraint.CopyFrom(choice("hello", " hello"))
    config.reasoning.enabled = False
    session = await new_session(speaker.server)
    empty = "<think>\n\n</think>\n\n"
    prompt = speaker.server.model.tokenizer.encode(
        empty, add_special_tokens=False, allow_special_tokens=True
    )
    speaker.answer_to(prompt, [*speaker.spell(text), speaker.end_id])

    first = await run_turn(speaker.server, session, [user("Say it")], config)
    second = await run_turn(speaker.server, session, [user("Again")], config)

    assert first.text == second.text == text
    assert first.output_ids == [*speaker.spell(text), speaker.end_id]
    assert second.prompt_ids[: len(first.context)] == first.context
