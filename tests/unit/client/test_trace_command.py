"""`antiphon trace`, over turns that a test has written."""

import asyncio
import json

import pytest
from antiphon.v1 import session_pb2, session_pb2_grpc, types_pb2
from google.protobuf.duration_pb2 import Duration
from rich.console import Console

from antiphon_cli.main import main
from antiphon_cli.timeline import Timeline, stretches
from support.scripted_services import serving

CHUNK = types_pb2.PrefillChunk
REST = types_pb2.Rest


def ms(value: float) -> Duration:
    return Duration(nanos=round(value * 1e6))


def chunk(start: float, duration: float, **more: int) -> types_pb2.PrefillChunk:
    return CHUNK(start=ms(start), duration=ms(duration), **more)


def traced_turn() -> session_pb2.Turn:
    """100 ms in the queue, 200 of prefill, 500 of decode with a pause."""
    return session_pb2.Turn(
        name="sessions/talk/turns/b",
        state=session_pb2.Turn.STATE_COMPLETED,
        output=types_pb2.Output(text="secret", finish_reason=types_pb2.FINISH_REASON_STOP),
        usage=types_pb2.Usage(prompt_tokens=812, cached_prompt_tokens=640, output_tokens=51),
        timings=types_pb2.Timings(
            queue=ms(100),
            preparation=ms(40),
            prefill=ms(200),
            decode=ms(500),
            time_to_first_token=ms(300),
            num_steps=53,
            num_preemptions=1,
            prefill_chunks=[
                chunk(100, 100, num_tokens=128, batch_size=3, step=17, num_steps=1),
                chunk(200, 100, num_tokens=44, batch_size=5, step=18, num_steps=30),
            ],
            rests=[REST(start=ms(500), duration=ms(100), reason=REST.REASON_PREEMPTED)],
            num_rests=18,
            rest=ms(180),
            mean_batch_size=3.25,
            max_batch_size=5,
            host_reused_tokens=64,
            recomputed_tokens=7,
        ),
    )


def shown(turn: session_pb2.Turn, **how: object) -> str:
    console = Console(width=120, highlight=False, **how)
    with console.capture() as capture:
        console.print(Timeline(turn))
    return capture.get()


class Turns(session_pb2_grpc.SessionServiceServicer):
    """One session with the turns it is given, newest last."""

    def __init__(self, *turns: session_pb2.Turn) -> None:
        self.turns = turns

    async def GetTurn(self, request, context):
        return next(turn for turn in self.turns if turn.name == request.name)

    async def ListTurns(self, request, context):
        assert request.newest_first
        assert request.session == "sessions/talk"
        assert request.page_size == 1
        return session_pb2.ListTurnsResponse(turns=self.turns[::-1])


async def run(servicer: Turns, *words: str) -> int:
    async with serving(sessions=servicer) as target:
        return await asyncio.to_thread(main, ["trace", *words, "--target", target])


def test_a_turn_is_its_parts_in_order_on_one_scale():
    told = [
        (each.label.strip(), round(each.start_s * 1e3), round(each.duration_s * 1e3))
        for each in stretches(traced_turn().timings)
    ]

    assert told == [
        ("queue", 0, 100),
        ("front end", 0, 40),
        ("engine", 40, 60),
        ("prefill", 100, 200),
        ("chunk 1", 100, 100),
        ("chunks 2-31", 200, 100),
        ("decode", 300, 500),
        ("paused", 500, 100),
        ("17 rests more", 0, 0),
    ]


def test_the_wait_for_the_grammar_is_told_apart_from_that_for_the_engine():
    turn = traced_turn()
    turn.timings.grammar_wait.CopyFrom(ms(50))

    told = [
        (each.label.strip(), round(each.start_s * 1e3), round(each.duration_s * 1e3))
        for each in list(stretches(turn.timings))[:4]
    ]

    assert told == [
        ("queue", 0, 100),
        ("front end", 0, 40),
        ("grammar", 40, 50),
        ("engine", 90, 10),
    ]


def test_bars_are_to_scale_and_plain_where_there_is_no_terminal():
    lines = shown(traced_turn()).splitlines()

    bars = {
        line.split("#")[0].split()[0]: (line.index("#"), line.count("#"))
        for line in lines
        if "#" in line
    }
    (left, queue), (start, decode) = bars["queue"], bars["decode"]
    assert decode == pytest.approx(5 * queue, abs=3)
    assert start - left == pytest.approx(3 * queue, abs=3)
    assert bars["paused"][0] - left == pytest.approx(5 * queue, abs=3)
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) <= 120


def test_figures_say_what_was_reused_and_how_fast_it_went():
    text = shown(traced_turn())

    assert text.startswith("sessions/talk/turns/b\ncompleted: STOP\n")
    assert "812 prompt tokens: 640 reused (64 of them from the host's memory), 172 computed" in text
    assert "172 computed, 860 a second" in text
    assert "51 output tokens in 53 steps, 100 a second" in text
    assert "batch: 3.2 on average, 5 at most" in text
    assert "18 rests of 180 ms together, 7 tokens computed again" in text
    assert "first token after 300 ms, last after 800 ms" in text
    assert "44 tokens, batch up to 5, step 18" in text


def test_terminals_get_colours():
    text = shown(traced_turn(), force_terminal=True, color_system="standard")

    assert "\x1b[" in text
    assert "#" not in text


def test_failure_is_told_with_its_reason():
    turn = session_pb2.Turn(
        name="sessions/talk/turns/a",
        state=session_pb2.Turn.STATE_FAILED,
        failure=types_pb2.Failure(reason="TIMEOUT"),
    )

    assert shown(turn) == "sessions/talk/turns/a\nfailed: TIMEOUT\n"


@pytest.mark.parametrize("name", ["talk", "talk/b", "sessions/talk/turns/b"])
async def test_turn_is_found_by_its_session_or_its_ids(capsys, name: str):
    older = session_pb2.Turn(name="sessions/talk/turns/a")

    assert await run(Turns(older, traced_turn()), name) == 0

    said = capsys.readouterr()
    assert said.out.startswith("sessions/talk/turns/b")
    assert said.err == ""


async def test_json_has_the_timings_and_nothing_that_was_said(capsys):
    assert await run(Turns(traced_turn()), "talk", "--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert told["timings"]["prefill_chunks"][0]["num_tokens"] == 128
    assert told["usage"]["prompt_tokens"] == 812
    assert "output" not in told


async def test_session_without_a_turn_and_turn_without_times_are_told(capsys):
    assert await run(Turns(), "talk") == 1
    assert "no turn yet" in capsys.readouterr().err

    running = session_pb2.Turn(name="sessions/talk/turns/a", state=session_pb2.Turn.STATE_RUNNING)
    assert await run(Turns(running), "talk") == 0
    said = capsys.readouterr()
    assert said.out == "sessions/talk/turns/a\nrunning\n"
    assert "nothing is kept of its times" in said.err

    appended = session_pb2.Turn(
        name="sessions/talk/turns/b", state=session_pb2.Turn.STATE_COMPLETED
    )
    assert await run(Turns(appended), "talk") == 0
    assert "appended: " in capsys.readouterr().out
