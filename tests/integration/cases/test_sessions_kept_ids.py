"""Answers whose ids are not those that their text would be encoded to."""

import pytest
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import HISTORY_POLICY_KEEP_TOKENS, HISTORY_POLICY_RERENDER
from antiphon.v1.types_pb2 import Conversation, Prompt, Role, TokenIds

from support.answers import ask
from support.forced_texts import Speaker
from support.session_rows import user
from support.turn_runs import TurnRun, greedy, new_session, run_turn, said

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONFIG = greedy(12)
QUESTION = user("Say it")


def odd_splits(speaker: Speaker) -> list[list[int]]:
    """Two ways to write a word that no encoder chooses."""
    spelt = speaker.spell("hello")
    return [spelt, [*speaker.encode("he"), *speaker.spell("l"), *speaker.encode("lo")]]


async def two_turns(
    speaker: Speaker, answer: list[int], follow_up: str, policy: int
) -> tuple[TurnRun, TurnRun]:
    """Lets the model say the answer twice, between and behind two questions."""
    prompt = speaker.server.model.renderer.render_conversation([QUESTION])
    speaker.answer_to(prompt.token_ids, [*answer, speaker.end_id])
    session = await new_session(speaker.server, history_policy=policy)
    first = await run_turn(speaker.server, session, [QUESTION], CONFIG)
    assert first.prompt_ids == prompt.token_ids
    assert first.output_ids == [*answer, speaker.end_id]
    return first, await run_turn(speaker.server, session, [user(follow_up)], CONFIG)


def conversation(first: TurnRun, follow_up: str) -> Prompt:
    """What a caller without a session would send as the second turn."""
    items = [QUESTION, said(Role.ROLE_ASSISTANT, first.text), user(follow_up)]
    return Prompt(conversation=Conversation(items=items))


@pytest.mark.parametrize("follow_up", [" so?", "\n\nso?", "so?", ""])
@pytest.mark.parametrize("split", [0, 1])
async def test_kept_ids_stay_as_they_were_generated(
    speaker: Speaker, split: int, follow_up: str
) -> None:
    answer = odd_splits(speaker)[split]

    first, second = await two_turns(speaker, answer, follow_up, HISTORY_POLICY_KEEP_TOKENS)

    kept = first.context
    assert second.prompt_ids[: len(kept)] == kept
    whole = await ask(
        speaker.server,
        GenerateRequest(prompt=conversation(first, follow_up), config=CONFIG),
    )
    rendered = list(whole.prompt_token_ids)
    head = len(first.prompt_ids)
    assert rendered[:head] == first.prompt_ids
    assert rendered[head : head + len(answer)] != answer
    if speaker.name == "byte_level":  # Its answers end as the template ends them.
        new = second.prompt_ids[len(kept) :]
        assert rendered[-len(new) - 1 :] == [speaker.end_id, *new]
    alone = await ask(
        speaker.server,
        GenerateRequest(prompt=Prompt(token_ids=TokenIds(ids=second.prompt_ids)), config=CONFIG),
    )
    assert list(alone.output.token_ids) == second.output_ids


@pytest.mark.parametrize("follow_up", [" so?", "\n\nso?"])
@pytest.mark.parametrize("split", [0, 1])
async def test_rerendered_ids_are_those_of_the_whole_text(
    byte_level: Speaker, split: int, follow_up: str
) -> None:
    answer = odd_splits(byte_level)[split]

    first, second = await two_turns(byte_level, answer, follow_up, HISTORY_POLICY_RERENDER)

    shown = byte_level.tokenizer.decode(second.prompt_ids, skip_special_tokens=False)
    assert second.prompt_ids == byte_level.reference.encode(shown, add_special_tokens=False).ids
    assert second.prompt_ids[: len(first.context)] != first.context
