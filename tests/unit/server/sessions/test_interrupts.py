"""Turns that stop the ones before them and stand on what was delivered of those."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest
from antiphon.v1.session_pb2 import (
    HISTORY_POLICY_KEEP_TOKENS,
    HISTORY_POLICY_RERENDER,
    ConverseRequest,
    ConverseResponse,
    StartTurn,
    Turn,
    TurnCursor,
    TurnEvent,
)
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED, FINISH_REASON_STOP_SEQUENCE

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_server.sessions.cache_hints import number_of
from antiphon_server.sessions.limits import SessionLimits
from support.crashes import copy_left_behind
from support.fake_engine import FakeEngine, fixed_ids
from support.session_bench import (
    KEY,
    BenchSpec,
    SessionBench,
    Talk,
    append_frame,
    cancel_frame,
    ends,
    eventually,
    generate_frame,
    is_kind,
    open_frame,
    session_bench,
    start_turn,
    text_of,
    turn_events,
)
from support.session_rows import user

INTERRUPT = StartTurn.IF_BUSY_INTERRUPT
LETTERS = (70, 71, 72, 73)
"""Tokens of the tiny tokenizer with a character each."""


def bench_of(spec: BenchSpec, *token_ids: int) -> BenchSpec:
    """A bench whose engine says these again and again."""
    return replace(spec, engine=lambda: FakeEngine(script=fixed_ids(*token_ids * 30)))


async def talking(
    bench: SessionBench,
    num_deltas: int,
    *,
    opening: ConverseRequest | None = None,
    **values: object,
) -> tuple[Talk, list[ConverseResponse]]:
    """A stream that was told so many pieces of the turn t1, which goes on."""
    bench.engine.hold()
    start = generate_frame("hi", "t1", **({"max_tokens": 100} | values))
    talk = bench.converse(opening or open_frame(), start)
    frames = await talk.until(is_kind("accepted"))
    await eventually(lambda: bool(bench.engine.requests))
    for _ in range(num_deltas):
        bench.engine.step()
        frames += await talk.until(lambda frame: frame.turn_event.HasField("delta"))
    return talk, frames


async def make_more(bench: SessionBench, num_steps: int) -> None:
    """Makes tokens that the stream is not told of yet."""
    bench.engine.step(num_steps)
    (turn,) = await live_turns(bench)
    num_before = turn.log.last_sequence
    await eventually(lambda: turn.log.last_sequence > num_before)


async def live_turns(bench: SessionBench) -> list:
    async with bench.registry.use(KEY) as session:
        return session.live_turns


async def rest_of(bench: SessionBench, talk: Talk) -> list[ConverseResponse]:
    """Lets the turn that is stopped end, then all others."""
    await eventually(lambda: bench.engine.requests[0].ended)
    bench.engine.release()
    return await talk.rest()


def text_up_to(events: Iterable[TurnEvent], sequence: int) -> str:
    return text_of(event for event in events if event.sequence <= sequence)


@pytest.mark.parametrize("policy", [HISTORY_POLICY_KEEP_TOKENS, HISTORY_POLICY_RERENDER])
async def test_what_was_delivered_stays_and_the_rest_goes(spec: BenchSpec, policy: int):
    async with session_bench(bench_of(spec, *LETTERS)) as bench:
        await bench.create(history_policy=policy)
        talk, frames = await talking(bench, 3)
        await make_more(bench, 5)
        talk.send(generate_frame("no", "t2", if_busy=INTERRUPT))
        frames += await rest_of(bench, talk)
        turn, session = await bench.turn("t1"), await bench.session()
        prompts, outputs, hints = bench.prompts, bench.outputs, bench.engine.hints

    events = turn_events(frames, "t1")
    completed = events[-1].completed
    assert completed.finish_reason == turn.output.finish_reason == FINISH_REASON_CANCELLED
    assert turn.output.text == text_up_to(events, completed.kept_sequence)
    assert turn.output.text == spec.text.tokenizer.decode(LETTERS[:3], skip_special_tokens=False)
    assert len(text_of(events)) == 8
    kept = prompts[0] + outputs[0][:3]
    if policy == HISTORY_POLICY_KEEP_TOKENS:
        assert prompts[1][: len(kept) + 1] == [*kept, 4]
    else:
        items = [user(text) for text in ("hi", turn.output.text, "no")]
        assert prompts[1] == bench.model.renderer.render_conversation(items).token_ids
    assert turn_events(frames, "t2")[-1].HasField("completed")
    assert session.num_turns == 2
    assert hints == [("rewind", number_of(KEY), len(kept))]


@pytest.mark.parametrize("num_acknowledged", [0, 2])
async def test_of_an_acknowledging_caller_what_it_acknowledged_stays(
    spec: BenchSpec, num_acknowledged: int
):
    async with session_bench(bench_of(spec, *LETTERS)) as bench:
        await bench.create()
        opening = open_frame(max_unacked_events=100)
        talk, frames = await talking(bench, 4, opening=opening)
        deltas = [f.turn_event for f in frames if f.turn_event.HasField("delta")]
        for event in deltas[:num_acknowledged]:
            cursor = TurnCursor(turn_id="t1", epoch=event.epoch, sequence=event.sequence)
            talk.send(ConverseRequest(ack=cursor))
        talk.send(generate_frame("no", "t2", if_busy=INTERRUPT))
        frames += await rest_of(bench, talk)
        turn, prompts, outputs = await bench.turn("t1"), bench.prompts, bench.outputs

    last = turn_events(frames, "t1")[-1]
    assert len(turn.output.text) == num_acknowledged
    assert last.HasField("failed") == (num_acknowledged == 0)
    if num_acknowledged:
        assert last.completed.kept_sequence == deltas[num_acknowledged - 1].sequence
        kept = prompts[0] + outputs[0][:num_acknowledged]
        assert prompts[1][: len(kept) + 1] == [*kept, 4]


async def test_a_turn_of_which_nothing_was_delivered_is_discarded(spec: BenchSpec):
    async with session_bench(bench_of(spec, *LETTERS)) as bench:
        await bench.create()
        talk, frames = await talking(bench, 0)
        await make_more(bench, 5)
        talk.send(generate_frame("no", "t2", if_busy=INTERRUPT))
        frames += await rest_of(bench, talk)
        turn, prompts = await bench.turn("t1"), bench.prompts
        other = bench.model.renderer.render_conversation([user("no")]).token_ids

    assert turn_events(frames, "t1")[-1].failed.code == 1
    assert turn.state == Turn.STATE_FAILED
    assert not turn.HasField("output")
    assert prompts[1] == other


async def test_turns_that_wait_are_stopped_too(spec: BenchSpec):
    async with session_bench(bench_of(spec, *LETTERS)) as bench:
        await bench.create()
        talk, frames = await talking(bench, 1)
        waiting = [generate_frame("x", f"w{number}") for number in range(2)]
        talk.send(*waiting, append_frame("y", "a"), generate_frame("no", "t2", if_busy=INTERRUPT))
        frames += await rest_of(bench, talk)
        prompts = bench.prompts

    for turn_id in ("w0", "w1", "a"):
        assert turn_events(frames, turn_id)[-1].failed.code == 1
    assert turn_events(frames, "t1")[-1].HasField("completed")
    assert turn_events(frames, "t2")[-1].HasField("completed")
    assert len(prompts) == 2


async def test_a_turn_may_be_answered_without_items_where_an_append_is_kept(spec: BenchSpec):
    async with session_bench(bench_of(spec, *LETTERS)) as bench:
        await bench.create()
        await bench.append("x", "a")
        first = await bench.follow(start_turn("", "t1", if_busy=INTERRUPT))
        second = await bench.follow(start_turn("", "t2", if_busy=INTERRUPT))

    assert first[-1].HasField("completed")
    assert second[-1].failed.reason == "INVALID_FIELD"


async def test_an_event_that_ends_inside_a_token_is_not_kept(spec: BenchSpec):
    tokenizer = spec.text.tokenizer
    long_id = next(
        token_id
        for token_id in range(300, 900)
        if len(text := tokenizer.decode([token_id], skip_special_tokens=False)) == 3
        and text.isascii()
        and len(set(text)) == 3
    )
    stop = tokenizer.decode([long_id], skip_special_tokens=False)[1:] + "#"
    async with session_bench(bench_of(spec, 70, long_id, 71)) as bench:
        await bench.create(defaults={"stop": {"stop_strings": [stop]}})
        talk, frames = await talking(bench, 2)
        await make_more(bench, 1)
        talk.send(generate_frame("no", "t2", if_busy=INTERRUPT))
        frames += await rest_of(bench, talk)
        turn, prompts = await bench.turn("t1"), bench.prompts

    events = turn_events(frames, "t1")
    assert len(text_up_to(events, events[-1].completed.kept_sequence)) == 1
    assert turn.output.text == tokenizer.decode([70], skip_special_tokens=False)
    assert prompts[1][: len(prompts[0]) + 2] == [*prompts[0], 70, 4]


async def test_token_ids_and_logprobs_are_cut_with_the_text(spec: BenchSpec):
    async with session_bench(bench_of(spec, *LETTERS)) as bench:
        await bench.create(defaults={"output": {"token_ids": True, "top_logprobs": 1}})
        talk, frames = await talking(bench, 2)
        await make_more(bench, 4)
        talk.send(generate_frame("no", "t2", if_busy=INTERRUPT))
        frames += await rest_of(bench, talk)
        output = (await bench.turn("t1")).output

    assert list(output.token_ids) == list(LETTERS[:2])
    assert [entry.chosen.token_id for entry in output.logprobs] == list(LETTERS[:2])


async def test_a_turn_that_has_ended_and_was_told_whole_stays_as_it_is(spec: BenchSpec):
    async with session_bench(bench_of(spec, *LETTERS)) as bench:
        await bench.create(defaults={"stop": {"stop_token_ids": [72]}})
        talk, frames = await talking(bench, 2)
        (turn,) = await live_turns(bench)
        bench.engine.step()
        await eventually(lambda: bench.engine.num_running == 0)
        turn.interrupt()
        frames += await talk.until(ends("t1"))

    assert frames[-1].turn_event.completed.finish_reason == FINISH_REASON_STOP_SEQUENCE


async def test_the_history_is_the_same_after_a_restart(spec: BenchSpec):
    spec = bench_of(spec, *LETTERS)
    async with session_bench(spec) as bench:
        await bench.create()
        talk, frames = await talking(bench, 3)
        await make_more(bench, 5)
        talk.send(generate_frame("no", "t2", if_busy=INTERRUPT))
        frames += await rest_of(bench, talk)
        whole = bench.prompts[1] + bench.outputs[1]
    async with session_bench(spec) as bench:
        again = await bench.follow(start_turn("hi", "t1", max_tokens=100))
        await bench.run("more", "t3")

        assert bench.prompts[0][: len(whole)] == whole
    assert text_of(again) == spec.text.tokenizer.decode(LETTERS[:3], skip_special_tokens=False)


async def test_an_answer_that_was_interrupted_goes_on(spec: BenchSpec):
    async with session_bench(bench_of(spec, *LETTERS)) as bench:
        await bench.create()
        talk, frames = await talking(bench, 3)
        await make_more(bench, 5)
        go_on = start_turn("", "t2", continue_answer=True, if_busy=INTERRUPT)
        running = asyncio.create_task(bench.follow(go_on))
        frames += await rest_of(bench, talk)
        await running

        assert bench.prompts[1] == bench.prompts[0] + bench.outputs[0][:3]


@pytest.mark.parametrize("if_busy", StartTurn.IfBusy.values())
@pytest.mark.parametrize("discard", [True, False])
async def test_a_turn_behind_a_cancel_is_never_refused_as_busy(
    spec: BenchSpec, if_busy: int, discard: bool
):
    async with session_bench(spec) as bench:
        await bench.create()
        talk, frames = await talking(bench, 1)
        for number in range(1, 6):
            talk.send(
                cancel_frame(f"t{number}", discard=discard),
                generate_frame("x", f"t{number + 1}", if_busy=if_busy, max_tokens=100),
            )
            frames += await talk.until(ends(f"t{number}"))
        talk.send(cancel_frame("t6"))
        frames += await talk.rest()

    assert not any(frame.HasField("rejected") for frame in frames)
    for number in range(1, 7):
        assert turn_events(frames, f"t{number}")


async def test_under_load_each_turn_behind_a_cancel_is_taken_in(spec: BenchSpec):
    engine = FakeEngine(max_running=2, step_interval_s=0.001)
    async with session_bench(replace(spec, engine=lambda: engine)) as bench:
        await bench.create()
        talk = bench.converse(open_frame(), generate_frame("x", "t0", max_tokens=100))
        kinds = [StartTurn.IF_BUSY_REJECT, StartTurn.IF_BUSY_QUEUE, INTERRUPT]
        for number in range(30):
            talk.send(
                cancel_frame(f"t{number}", discard=number % 2 == 0),
                generate_frame("x", f"t{number + 1}", if_busy=kinds[number % 3], max_tokens=100),
            )
        frames = await talk.rest()

    assert not any(frame.HasField("rejected") for frame in frames)
    for number in range(31):
        assert turn_events(frames, f"t{number}")


async def test_a_busy_session_refuses_where_asked_and_interrupts_where_asked(spec: BenchSpec):
    async with session_bench(bench_of(spec, *LETTERS)) as bench:
        await bench.create()
        talk, frames = await talking(bench, 1)
        rejects = start_turn("x", "t2", if_busy=StartTurn.IF_BUSY_REJECT)
        with pytest.raises(AntiphonError) as busy:
            await bench.follow(rejects)
        interrupts = asyncio.create_task(bench.follow(start_turn("x", "t3", if_busy=INTERRUPT)))
        frames += await rest_of(bench, talk)
        await interrupts

    assert busy.value.reason is ErrorReason.SESSION_BUSY
    assert turn_events(frames, "t1")[-1].completed.finish_reason == FINISH_REASON_CANCELLED


async def test_a_turn_at_fault_interrupts_nothing(spec: BenchSpec):
    async with session_bench(bench_of(spec, *LETTERS)) as bench:
        await bench.create()
        talk, frames = await talking(bench, 1)
        bad = start_turn("x", "t2", if_busy=INTERRUPT)
        bad.config.sampling.temperature = -1
        with pytest.raises(AntiphonError):
            await bench.follow(bad)
        bench.engine.release()
        frames += await talk.rest()

    assert turn_events(frames, "t1")[-1].completed.finish_reason != FINISH_REASON_CANCELLED


async def test_a_repeated_turn_interrupts_nothing(spec: BenchSpec):
    async with session_bench(bench_of(spec, *LETTERS)) as bench:
        await bench.create()
        talk, frames = await talking(bench, 1, if_busy=INTERRUPT)
        again = generate_frame("hi", "t1", max_tokens=100, if_busy=INTERRUPT)
        talk.send(again)
        bench.engine.release()
        frames += await talk.rest()

    ended = [frame for frame in frames if ends("t1")(frame)]
    assert len(ended) == 2
    assert all(
        frame.turn_event.completed.finish_reason != FINISH_REASON_CANCELLED for frame in ended
    )


@pytest.mark.parametrize("num_steps", [0, 9])
async def test_a_turn_stays_interrupted_over_a_crash(spec: BenchSpec, num_steps: int):
    limits = SessionLimits(checkpoint_tokens=1, checkpoint_interval_s=0.001)
    # Such an engine doesn't confirm a stop, so that the crash comes first.
    deaf = FakeEngine(script=fixed_ids(*LETTERS * 30), deaf=True)
    spec = replace(spec, limits=limits, engine=lambda: deaf)
    async with session_bench(spec) as bench:
        await bench.create()
        talk, _ = await talking(bench, num_steps)
        while num_steps and await bench.store.read_checkpoint(KEY, 1) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        talk.send(generate_frame("no", "t2", if_busy=INTERRUPT))
        await talk.until(is_kind("accepted"))
        left = copy_left_behind(spec.path)
    async with session_bench(replace(bench_of(spec, *LETTERS), path=left)) as bench:
        await eventually(lambda: not bench.registry.num_live_turns)
        first, second = await bench.turn("t1"), await bench.turn("t2")
        last_prompt = bench.prompts[-1]

    assert second.state == Turn.STATE_COMPLETED
    assert first.state == (Turn.STATE_COMPLETED if num_steps else Turn.STATE_FAILED)
    assert len(first.output.text) <= num_steps
    assert last_prompt.count(70) == len(first.output.text[::4])
