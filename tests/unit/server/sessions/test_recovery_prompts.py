"""A turn that is taken up stands on the prompt that it had, whatever kind of turn it is."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from antiphon.v1.session_pb2 import HistoryPolicy, Session, StartTurn, Turn, UpdateSessionRequest
from google.protobuf.field_mask_pb2 import FieldMask

from antiphon_server.sessions.limits import SessionLimits
from antiphon_server.sessions.records import TurnOrder
from support.crashes import copy_left_behind
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    eventually,
    generate_frame,
    is_kind,
    open_frame,
    session_bench,
    start_turn,
)
from support.session_rows import turn_row

SIZE = 30
NUM_KEPT = 11

Prepare = Callable[[SessionBench], Awaitable[StartTurn]]


async def whole_prompts(bench: SessionBench) -> StartTurn:
    await bench.create(history_policy=HistoryPolicy.HISTORY_POLICY_RERENDER)
    await bench.run("zero", "t0")
    return start_turn("one", "t1", max_tokens=SIZE)


async def continued_answer(bench: SessionBench) -> StartTurn:
    await bench.create()
    await bench.run("zero", "t0")
    return start_turn("", "t1", max_tokens=SIZE, continue_answer=True)


async def continued_answer_of_whole_prompts(bench: SessionBench) -> StartTurn:
    await bench.create(history_policy=HistoryPolicy.HISTORY_POLICY_RERENDER)
    await bench.run("zero", "t0")
    return start_turn("", "t1", max_tokens=SIZE, continue_answer=True)


async def new_instructions(bench: SessionBench) -> StartTurn:
    await bench.create(instructions="be brief")
    await bench.run("zero", "t0")
    request = UpdateSessionRequest(
        session=Session(name=KEY.name, instructions="be long"),
        update_mask=FieldMask(paths=["instructions"]),
    )
    await bench.registry.update("", request)
    return start_turn("one", "t1", max_tokens=SIZE)


@pytest.mark.parametrize(
    "prepare",
    [whole_prompts, continued_answer, continued_answer_of_whole_prompts, new_instructions],
)
async def test_output_and_later_prompts_are_those_of_a_calm_run(
    spec: BenchSpec, prepare: Prepare
) -> None:
    async with session_bench(replace(spec, path=spec.path.with_name("calm.db"))) as bench:
        await bench.follow(await prepare(bench))
        await bench.run("after", "t2")
        calm, calm_prompts = await bench.turn("t1"), bench.prompts
    spec.limits = SessionLimits(checkpoint_tokens=1)
    async with session_bench(spec) as bench:
        start = await prepare(bench)
        bench.engine.hold()
        frame = generate_frame("", "t1")
        frame.generate.CopyFrom(start)
        talk = bench.converse(open_frame(), frame)
        await talk.until(is_kind("accepted"))
        await eventually(lambda: len(bench.engine.requests) == 2)
        bench.engine.step(NUM_KEPT)
        kept = 0
        while kept < NUM_KEPT:
            await eventually(lambda: True)
            checkpoint = await bench.store.read_checkpoint(KEY, 2)
            kept = len(checkpoint.tokens.output_ids) if checkpoint else 0
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left)) as bench:
        await eventually(lambda: not bench.registry.num_live_turns)
        turn = await bench.turn("t1")
        await bench.run("after", "t2")
        prompts = bench.prompts

    assert turn.output == calm.output
    assert turn.usage.prompt_tokens == calm.usage.prompt_tokens
    assert prompts[0][:-NUM_KEPT] == calm_prompts[1]
    assert prompts[1] == calm_prompts[2]


async def test_order_that_this_release_does_not_take_fails_its_turn_alone(
    spec: BenchSpec,
) -> None:
    async with session_bench(spec) as bench:
        await bench.create()
        broken = start_turn("one")
        broken.timeout.seconds = -1
        for position, request in ((1, broken), (2, start_turn("two"))):
            order = TurnOrder(request=request, accepted=Session())
            row = replace(turn_row(position, key=KEY), order=order)
            await bench.store.accept_turn(KEY, row, max_stored_bytes=1 << 30)
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left)) as bench:
        await eventually(lambda: not bench.registry.num_live_turns)
        states = [await bench.turn(f"t{position}") for position in (1, 2)]

    assert [turn.state for turn in states] == [Turn.STATE_FAILED, Turn.STATE_COMPLETED]
    assert states[0].failure.reason == "INVALID_FIELD"


async def test_checkpoint_that_can_not_be_read_costs_time_alone(spec: BenchSpec) -> None:
    spec.limits = SessionLimits(checkpoint_tokens=1)
    async with session_bench(spec) as bench:
        await bench.create()
        bench.engine.hold()
        talk = bench.converse(open_frame(), generate_frame("one", "t1", max_tokens=SIZE))
        await talk.until(is_kind("accepted"))
        await eventually(lambda: len(bench.engine.requests) == 1)
        bench.engine.step(NUM_KEPT)
        while await bench.store.read_checkpoint(KEY, 1) is None:
            await eventually(lambda: True)
        damage = "UPDATE checkpoint_parts SET logprobs = x'01'"
        await bench.store._writer.run(lambda file: file.execute(damage))
        left = copy_left_behind(spec.path)
    async with session_bench(replace(spec, path=left)) as bench:
        await eventually(lambda: not bench.registry.num_live_turns)
        turn = await bench.turn("t1")

    assert turn.state == Turn.STATE_COMPLETED
    assert turn.usage.output_tokens == SIZE
    assert bench.engine.requests[0].resumed == []
