"""Tool calls of turns: told once they are complete and durable, and then never otherwise."""

import asyncio
from pathlib import Path

import grpc
import pytest
from antiphon.v1.session_pb2 import CancelTurnRequest, StartTurn, Turn
from antiphon.v1.types_pb2 import FinishReason, ToolCall

from support.answers import fold_turn
from support.calling_sessions import (
    BERN,
    LIMIT_S,
    NOW,
    SESSION,
    calling_bench,
    calls_in,
    rest_of,
    result,
)
from support.crashes import copy_left_behind
from support.server import details_of
from support.session_rows import user

BOTH = f"I look.\n{BERN}\n{NOW}"
CALLED = FinishReason.FINISH_REASON_TOOL_CALLS
CANCELLED = FinishReason.FINISH_REASON_CANCELLED
OUT_OF_TOKENS = FinishReason.FINISH_REASON_MAX_OUTPUT_TOKENS


def reason_of(error: grpc.aio.AioRpcError) -> str:
    return str(details_of(error)["ErrorInfo"].reason)


async def test_a_call_is_told_while_the_output_goes_on(tmp_path: Path) -> None:
    async with calling_bench(tmp_path) as bench:
        bench.says(BOTH)
        call, events = await bench.begin(1)
        num_said = len(bench.engine.requests[0].outputs[0].token_ids)
        partial = await bench.kept()
        bench.engine.release()
        events += await rest_of(call)
        kept = await bench.kept()

    assert num_said < len(bench.encode(f"I look.\n{BERN}\n<tool_call>\n")) + 4
    assert list(partial.output.tool_calls) == calls_in(events)[:1]
    output = fold_turn(events)
    assert [(c.tool_name, c.arguments_json) for c in output.tool_calls] == [
        ("weather", '{"city": "Bern"}'),
        ("clock_now", "{}"),
    ]
    assert (output.text, output.finish_reason) == ("I look.", CALLED)
    assert kept.output.tool_calls == output.tool_calls
    assert kept.last_sequence == events[-1].sequence


async def test_a_call_that_was_told_is_durable(tmp_path: Path) -> None:
    async with calling_bench(tmp_path) as bench:
        bench.says(BOTH)
        call, events = await bench.begin(1)
        left = copy_left_behind(Path(bench.server.config.store.path))
        call.cancel()
    async with calling_bench(tmp_path, create=False, store=left) as bench:
        bench.says(BOTH)
        again = await bench.follow()
        (taken_up,) = bench.engine.requests

    resumed = bench.server.model.tokenizer.decode(taken_up.resumed, skip_special_tokens=False)
    assert BERN in resumed
    assert calls_in(again)[0] == calls_in(events)[0]
    assert len(calls_in(again)) == 2
    assert {event.epoch for event in again}.isdisjoint({event.epoch for event in events})
    assert fold_turn(again).finish_reason == CALLED


async def test_a_call_that_takes_the_last_token_is_told_again_and_answered(
    tmp_path: Path,
) -> None:
    async with calling_bench(tmp_path) as bench:
        bench.says(BERN)
        max_tokens = len(bench.encode(BERN))
        call, events = await bench.begin(1, max_tokens=max_tokens)
        left = copy_left_behind(Path(bench.server.config.store.path))
        call.cancel()
    async with calling_bench(tmp_path, create=False, store=left) as bench:
        again = await bench.follow()
        assert not bench.engine.requests
        bench.says("Fine.")
        answered = fold_turn(await bench.run(result(calls_in(again)[0]), turn_id="t2"))

    assert calls_in(again) == calls_in(events)
    assert again[-1].completed.finish_reason == OUT_OF_TOKENS
    assert again[-1].completed.usage.output_tokens == max_tokens
    assert answered.text == "Fine."


async def test_a_call_that_is_cut_short_is_not_told(tmp_path: Path) -> None:
    async with calling_bench(tmp_path) as bench:
        num_tokens = len(bench.encode(f"{BERN}\n{NOW[:40]}"))
        bench.says(f"{BERN}\n{NOW}", "Fine.")
        events = await bench.run(max_tokens=num_tokens)
        (call,) = calls_in(events)
        bare = await bench.refused(turn_id="t2")
        after = await bench.run(result(call), turn_id="t3")
        (_, second) = bench.engine.requests

    assert events[-1].completed.finish_reason == OUT_OF_TOKENS
    assert events[-1].completed.kept_sequence < events[-1].sequence
    assert call.tool_name == "weather"
    assert (reason_of(bare)) == "TOOL_RESULTS_MISSING"
    assert fold_turn(after).text == "Fine."
    prompt = bench.server.model.tokenizer.decode(second.prompt, skip_special_tokens=False)
    assert prompt.count("</tool_call>") == prompt.count("<tool_call>") == 1


async def test_a_call_in_an_output_that_is_cut_short_is_looked_at(tmp_path: Path) -> None:
    async with calling_bench(tmp_path) as bench:
        wrong = BERN.replace("city", "town")
        bench.says(f"{wrong}\n{NOW}")
        failed = await bench.refused(max_tokens=len(bench.encode(wrong)) + 3)
        kept = await bench.kept()

    assert reason_of(failed) == "CONSTRAINT_VIOLATED"
    assert kept.state == Turn.STATE_FAILED
    assert not kept.output.tool_calls


async def test_results_are_asked_for_by_turn_and_call(tmp_path: Path) -> None:
    async with calling_bench(tmp_path) as bench:
        bench.says(BOTH, "It is warm.")
        first, second = calls_in(await bench.run())
        none = await bench.refused(turn_id="t2")
        one = await bench.refused(result(second), turn_id="t3")
        late = await bench.refused(result(first), user("And?"), result(second), turn_id="t4")
        twice = await bench.refused(result(first), result(first), result(second), turn_id="t5")
        other = await bench.refused(result(ToolCall(call_id="nobody")), turn_id="t6")
        done = fold_turn(await bench.run(result(second), result(first), turn_id="t7"))
        again = await bench.refused(result(first), turn_id="t8")

    for error, missing in ((none, (first, second)), (one, (first,)), (late, (second,))):
        info = details_of(error)["ErrorInfo"]
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert info.reason == "TOOL_RESULTS_MISSING"
        assert info.metadata["call_ids"] == ",".join(call.call_id for call in missing)
        assert info.metadata["turn"] == f"{SESSION}/turns/t1"
        assert all(call.call_id in str(error.details()) for call in missing)
    for error, why in ((twice, "already"), (other, "does not wait"), (again, "does not wait")):
        assert reason_of(error) == "INVALID_FIELD"
        (violation,) = details_of(error)["BadRequest"].field_violations
        assert violation.field.endswith(".tool_result.call_id")
        assert why in violation.description
    assert (done.text, done.finish_reason) == ("It is warm.", FinishReason.FINISH_REASON_STOP)


async def test_calls_of_a_stopped_turn_are_told_of_it_and_take_no_results(
    tmp_path: Path,
) -> None:
    async with calling_bench(tmp_path) as bench:
        bench.says(BOTH, "Never mind.")
        stream, events = await bench.begin(1)
        cancelling = asyncio.ensure_future(
            bench.server.sessions.CancelTurn(
                CancelTurnRequest(name=f"{SESSION}/turns/t1"), timeout=LIMIT_S
            )
        )
        events += await rest_of(stream)
        cancelled = await cancelling
        bench.engine.release()
        (call,) = calls_in(events)
        refused = await bench.refused(result(call), turn_id="t2")
        after = fold_turn(await bench.run(user("Stop."), turn_id="t3"))
        prompt = bench.engine.requests[-1].prompt
        shown = bench.server.model.tokenizer.decode(prompt, skip_special_tokens=False)

    assert cancelled.output.finish_reason == CANCELLED
    assert list(cancelled.output.tool_calls) == [call]
    assert events[-1].completed.finish_reason == CANCELLED
    first_piece = next(e for e in events if e.delta.call_id)
    assert events[-1].completed.kept_sequence < first_piece.first_sequence
    assert reason_of(refused) == "INVALID_FIELD"
    (violation,) = details_of(refused)["BadRequest"].field_violations
    assert f"{SESSION}/turns/t1" in violation.description
    assert "was stopped" in violation.description
    assert after.text == "Never mind."
    assert "I look." in shown
    assert "weather" not in shown.split("I look.")[1]


@pytest.mark.parametrize("said", [BOTH, BERN], ids=["behind a text", "at once"])
async def test_an_interrupted_turn_keeps_the_calls_that_were_told(
    tmp_path: Path, said: str
) -> None:
    async with calling_bench(tmp_path) as bench:
        bench.says(said, "Never mind.")
        stream, events = await bench.begin(1)
        start = bench.start(user("Stop."), turn_id="t2")
        start.turn.if_busy = StartTurn.IF_BUSY_INTERRUPT
        steering = bench.server.sessions.RunTurn(start, timeout=LIMIT_S)
        events += await rest_of(stream)
        bench.engine.release()
        steered = fold_turn([event async for event in steering])
        kept = await bench.kept()

    assert kept.state == Turn.STATE_COMPLETED
    assert list(kept.output.tool_calls) == calls_in(events)
    assert kept.output.finish_reason == CANCELLED
    assert steered.text == "Never mind."


async def test_a_reader_inside_of_a_turn_with_calls_starts_over_behind_a_restart(
    tmp_path: Path,
) -> None:
    async with calling_bench(tmp_path) as bench:
        bench.says(BOTH)
        events = await bench.run()
        left = copy_left_behind(Path(bench.server.config.store.path))
    async with calling_bench(tmp_path, create=False, store=left) as bench:
        whole = fold_turn(await bench.follow())
        for event in events[2:-1]:
            again = await bench.follow(after_sequence=event.sequence, epoch=event.epoch)
            assert again[0].HasField("reset"), event
            assert fold_turn(again[1:]) == whole

    assert whole == fold_turn(events)
