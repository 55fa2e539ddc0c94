"""Sessions of a model that thinks, free and within constraints: histories are as without."""

from itertools import pairwise

import pytest
from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_KEEP_TOKENS,
    HISTORY_POLICY_RERENDER,
    GetTurnRequest,
    RunTurnRequest,
    StartTurn,
)
from antiphon.v1.types_pb2 import (
    Choice,
    Constraint,
    FinishReason,
    GenerationConfig,
    OutputOptions,
    ReasoningConfig,
)

from support.answers import LIMIT_S, fold_turn
from support.calling_models import CallingModel, config
from support.session_rows import user
from support.turn_runs import events_of_turn, new_session, read_run, run_turn

pytestmark = pytest.mark.asyncio(loop_scope="session")

YES_OR_NO = Constraint(choice=Choice(options=["yes", "no"]))
HELD = pytest.mark.parametrize("constraint", [None, YES_OR_NO], ids=["free", "held"])
POLICIES = pytest.mark.parametrize(
    "policy", [HISTORY_POLICY_KEEP_TOKENS, HISTORY_POLICY_RERENDER], ids=["keeps", "renders"]
)


def thinks(constraint: Constraint | None, *, max_tokens: int = 120) -> GenerationConfig:
    return config(
        max_tokens=max_tokens,
        constraint=constraint,
        reasoning=ReasoningConfig(enabled=True),
        output=OutputOptions(token_ids=True, prompt_token_ids=True),
    )


def opener(constraint: Constraint | None) -> str:
    """What a model says first; where something holds behind the thinking, the prompt opens it."""
    return "" if constraint else "<think>\n"


@HELD
@pytest.mark.parametrize("spelled", [False, True], ids=["words", "bytes"])
async def test_each_turn_keeps_the_ids_of_earlier_thinking_however_they_were_cut(
    thinking: CallingModel, constraint: Constraint | None, spelled: bool
) -> None:
    session, runs = await new_session(thinking.server), []
    for thought in ("I muse", " again\n", "and again"):
        thinking.wants(f"{opener(constraint)}{thought}</think>\n\nyes", spelled=spelled)
        runs.append(await run_turn(thinking.server, session, [user("Is it?")], thinks(constraint)))

    for earlier, later in pairwise(runs):
        assert later.prompt_ids[: len(earlier.context)] == earlier.context
        assert 0 < later.usage.cached_prompt_tokens < len(later.prompt_ids)
    assert [run.text for run in runs] == ["yes"] * 3


@HELD
@POLICIES
async def test_thinking_that_spells_control_tokens_brings_none(
    thinking: CallingModel, constraint: Constraint | None, policy: int
) -> None:
    """Thinking, and the answer behind it, which the next prompt shows in either way."""
    tokenizer, counts = thinking.server.model.tokenizer, []
    for text in ("so ){im_end}(", "so <|im_end|>\n<|im_start|>system"):
        spelled = tokenizer.encode(text, add_special_tokens=False, allow_special_tokens=False)
        closer = thinking.encode("</think>\n\n")
        thinking.wants_ids(
            [
                *thinking.encode(opener(constraint)),
                *spelled,
                *closer,
                *spelled,
                *tokenizer.end_ids,
            ]
        )
        held = Constraint(choice=Choice(options=[text])) if constraint else None
        session = await new_session(thinking.server, history_policy=policy)
        asked = StartTurn(items=[user("Is it?")], config=thinks(held))
        events = await events_of_turn(thinking.server, session, asked)
        first = fold_turn(events)
        second = await run_turn(thinking.server, session, [user("Is it?")], thinks(held))

        assert (first.reasoning.strip(), first.text) == (text, text)
        shown = tokenizer.decode(second.prompt_ids, skip_special_tokens=False)
        assert shown.count(text) == (1 if policy == HISTORY_POLICY_RERENDER else 2)
        kept = read_run(events).context
        assert policy == HISTORY_POLICY_RERENDER or second.prompt_ids[: len(kept)] == kept
        names = ("<|im_start|>", "<|im_end|>")
        ids = [thinking.reference.token_to_id(name) for name in names]
        counts.append([second.prompt_ids.count(token_id) for token_id in ids])

    assert counts[0] == counts[1]


@HELD
async def test_a_turn_interrupted_while_it_thinks_leaves_the_next_one_its_own(
    thinking: CallingModel, constraint: Constraint | None
) -> None:
    server = thinking.server
    session = await new_session(server)
    thinking.wants(f"{opener(constraint)}on and on", goes_on=True)
    first = StartTurn(
        turn_id="t1", items=[user("Is it?")], config=thinks(constraint, max_tokens=1500)
    )
    running = server.sessions.RunTurn(RunTurnRequest(session=session, turn=first), timeout=LIMIT_S)
    while not (await running.read()).HasField("delta"):
        pass
    thinking.wants(f"{opener(YES_OR_NO)}no</think>\n\nno")
    second = StartTurn(
        turn_id="t2",
        items=[user("And?")],
        config=thinks(YES_OR_NO),
        if_busy=StartTurn.IF_BUSY_INTERRUPT,
    )

    told = fold_turn(await events_of_turn(server, session, second))

    kept = await server.sessions.GetTurn(
        GetTurnRequest(name=f"{session}/turns/t1"), timeout=LIMIT_S
    )
    assert (told.reasoning.strip(), told.text) == ("no", "no")
    assert kept.output.finish_reason == FinishReason.FINISH_REASON_CANCELLED
    assert kept.output.reasoning.strip().startswith("on")
    assert kept.output.text == ""
