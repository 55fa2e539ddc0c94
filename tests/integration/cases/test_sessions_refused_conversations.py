"""Conversations that the chat template refuses: told in its words, and nothing is left of them."""

import re
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest
import pytest_asyncio
from antiphon.v1.inference_pb2 import GenerateRequest
from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_KEEP_TOKENS,
    HISTORY_POLICY_RERENDER,
    ConverseRequest,
    ConverseResponse,
    GetSessionRequest,
    ListTurnsRequest,
    OpenSession,
    StartTurn,
)
from antiphon.v1.types_pb2 import (
    Constraint,
    Conversation,
    Failure,
    Item,
    Prompt,
    Role,
    ToolResult,
)

from support.answers import LIMIT_S
from support.canary import Canary
from support.real_server import real_server
from support.refusals import Refusal, refusal_of, refusal_of_both
from support.server import RunningServer
from support.session_rows import user
from support.tiny_checkpoints import make_checkpoint
from support.tiny_tokenizers import save_byte_level_tokenizer
from support.turn_runs import TurnRun, events_of_turn, greedy, new_session, run_turn, said

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = greedy(8)
COMPLAINT = "questions and answers must take turns"
TEMPLATE = (
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    f"{{{{ raise_exception('{COMPLAINT}') }}}}{{% endif %}}"
    "{% if m.content.startswith('!') %}{{ raise_exception(m.content) }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INVALID, UNBUILT = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED
ODD_ORDERS = {
    "user_user": ([user("a"), user("b")], INVALID, "TEMPLATE_ERROR", COMPLAINT),
    "system_first": (
        [said(Role.ROLE_SYSTEM, "a"), user("b")],
        INVALID,
        "TEMPLATE_ERROR",
        COMPLAINT,
    ),
    "assistant_first": ([said(Role.ROLE_ASSISTANT, "a")], INVALID, "TEMPLATE_ERROR", COMPLAINT),
    "result_without_call": (
        [user("a"), Item(tool_result=ToolResult(call_id="c", text="b"))],
        UNBUILT,
        "UNSUPPORTED_FEATURE",
        "tools",
    ),
    "nothing": ([], INVALID, "INVALID_FIELD", "items"),
    "unknown_role": ([user("a"), said(9, "b")], INVALID, "INVALID_FIELD", "role"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canary(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Canary]:
    directory = tmp_path_factory.mktemp("refused")
    checkpoint = make_checkpoint(directory / "checkpoint")
    save_byte_level_tokenizer(checkpoint, chat_template=TEMPLATE)
    async with real_server(directory, checkpoint) as server:
        yield await Canary.of(server)


@pytest_asyncio.fixture(loop_scope="module")
async def server(canary: Canary) -> AsyncIterator[RunningServer]:
    """A server whose template is strict; each test leaves it as it was."""
    yield canary.server
    await canary.check()


async def converse(server: RunningServer, session: str, items: Sequence[Item]) -> Failure:
    """Starts a turn on a stream, which must fail there and let the stream go on."""
    call = server.sessions.Converse(timeout=LIMIT_S)
    await call.write(ConverseRequest(open=OpenSession(name=session)))
    assert (await call.read()).HasField("opened")
    start = StartTurn(turn_id="odd", items=items, config=CONFIG)
    await call.write(ConverseRequest(frame_id="f", generate=start))
    await call.done_writing()
    frames: list[ConverseResponse] = []
    while (frame := await call.read()) is not grpc.aio.EOF:
        frames.append(frame)
    last = frames[-1]
    assert await call.code() is grpc.StatusCode.OK
    if last.HasField("rejected"):
        assert (last.rejected.frame_id, last.rejected.turn_id) == ("f", "odd")
        return last.rejected.failure
    assert [frame.turn_event.WhichOneof("event") for frame in frames] == ["accepted", "failed"]
    return last.turn_event.failed


async def state_of(server: RunningServer, session: str) -> tuple[object, ...]:
    """What a caller can see of a session's history."""
    found = await server.sessions.GetSession(GetSessionRequest(name=session), timeout=LIMIT_S)
    turns = await server.sessions.ListTurns(ListTurnsRequest(session=session), timeout=LIMIT_S)
    return found.etag, found.head_turn, found.num_turns, [turn.name for turn in turns.turns]


async def is_as_good_as_new(server: RunningServer, session: str, fresh: str) -> TurnRun:
    """Runs the same turn in both and returns what came of it."""
    legal, expected = [
        await run_turn(server, name, [user("What now?")], CONFIG) for name in (session, fresh)
    ]
    assert (legal.prompt_ids, legal.output_ids) == (expected.prompt_ids, expected.output_ids)
    return legal


@pytest.mark.parametrize("order", ODD_ORDERS)
@pytest.mark.parametrize("policy", [HISTORY_POLICY_KEEP_TOKENS, HISTORY_POLICY_RERENDER])
async def test_refused_order_of_roles_leaves_the_session_as_it_was(
    server: RunningServer, order: str, policy: int
) -> None:
    items, code, reason, words = ODD_ORDERS[order]
    session, fresh = [await new_session(server, history_policy=policy) for _ in range(2)]
    for num_turns in range(2):
        before = await state_of(server, session)

        start = StartTurn(items=items, config=CONFIG)
        refusal = await refusal_of(lambda start=start: events_of_turn(server, session, start))
        failure = await converse(server, session, items)

        assert (refusal.code, refusal.reason) == (code, reason)
        assert (failure.code, failure.reason) == (code.value[0], reason)
        assert words in refusal.message
        assert words in failure.message
        assert await state_of(server, session) == before
        assert before[2] == num_turns
        await is_as_good_as_new(server, session, fresh)


@pytest.mark.parametrize("order", ODD_ORDERS)
async def test_refused_order_of_roles_is_told_alike_without_a_session(
    server: RunningServer, order: str
) -> None:
    items, code, reason, words = ODD_ORDERS[order]
    prompt = Prompt(conversation=Conversation(items=items))

    refusal = await refusal_of_both(server, GenerateRequest(prompt=prompt, config=CONFIG))

    assert (refusal.code, refusal.reason) == (code, reason)
    assert words in refusal.message


async def test_refused_orders_of_a_constrained_turn_leave_the_session_as_it_was(
    server: RunningServer,
) -> None:
    config = greedy(40)
    config.constraint.CopyFrom(Constraint(regex="([a-f]{2}[0-9]-){3}"))
    session, fresh = [await new_session(server) for _ in range(2)]
    before = await state_of(server, session)
    for items, code, reason, _ in ODD_ORDERS.values():
        start = StartTurn(items=items, config=config)

        refusal = await refusal_of(lambda start=start: events_of_turn(server, session, start))

        assert (refusal.code, refusal.reason) == (code, reason)
        assert await state_of(server, session) == before
    held, expected = [
        await run_turn(server, name, [user("What now?")], config) for name in (session, fresh)
    ]
    assert re.fullmatch("([a-f]{2}[0-9]-){3}", held.text)
    assert (held.prompt_ids, held.output_ids) == (expected.prompt_ids, expected.output_ids)


async def test_long_complaint_of_a_template_is_cut(server: RunningServer) -> None:
    items = [user("!" + "no " * 100_000)]
    session = await new_session(server)
    prompt = Prompt(conversation=Conversation(items=items))

    refused: list[Refusal] = [
        await refusal_of_both(server, GenerateRequest(prompt=prompt)),
        await refusal_of(lambda: events_of_turn(server, session, StartTurn(items=items))),
    ]
    failure = await converse(server, session, items)

    for message in [failure.message, *(refusal.message for refusal in refused)]:
        assert message.startswith("!no no")
        assert len(message.encode()) <= 2048
    assert {failure.reason, *(refusal.reason for refusal in refused)} == {"TEMPLATE_ERROR"}
    await is_as_good_as_new(server, session, await new_session(server))
