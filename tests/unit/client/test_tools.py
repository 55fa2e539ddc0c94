"""Calls of tools, answered by the client."""

import asyncio
import sys
from pathlib import Path

import pytest
from antiphon.v1.session_pb2 import Session
from antiphon.v1.types_pb2 import (
    FinishReason,
    GenerationConfig,
    OutputChannel,
    SamplingParams,
    ToolCall,
    ToolChoice,
)

from antiphon_client import Client, SyncClient, answer_calls, tool, tool_result
from support.calling_models import TOOLS
from support.calling_sessions import BERN, NOW, SESSION, calling_bench

EXAMPLES = Path(__file__).parents[3] / "clients/examples"
SETTINGS = Session(tools=TOOLS)


async def test_calls_are_answered_until_there_are_none(tmp_path):
    asked = []

    async def weather(arguments):
        asked.append(arguments)
        return {"celsius": 21}

    async with calling_bench(tmp_path) as bench, Client(bench.server.target) as client:
        bench.says(f"I look.\n{BERN}\n{NOW}", "It is warm.")
        handlers = {"weather": weather, "clock_now": lambda _: "noon"}
        async with client.new_session(SETTINGS) as session:
            turns = [turn async for turn in session.use_tools("Well?", handlers)]
            kept = [turn async for turn in session.turns()]

    first, second = turns
    assert asked == [{"city": "Bern"}]
    assert [call.tool_name for call in first.open_calls] == ["weather", "clock_now"]
    assert first.completed.finish_reason == FinishReason.FINISH_REASON_TOOL_CALLS
    assert (second.open_calls, second.tool_calls) == ([], [])
    assert kept[1].output.text == "It is warm."
    results = [(item.tool_result.call_id, item.tool_result.text) for item in kept[1].input]
    ids = [call.call_id for call in first.tool_calls]
    assert results == [(ids[0], '{"celsius": 21}'), (ids[1], "noon")]


@pytest.mark.parametrize(
    "has_to",
    [ToolChoice(tool_name="weather"), ToolChoice(mode=ToolChoice.MODE_REQUIRED)],
    ids=["it", "any"],
)
async def test_what_has_to_call_first_need_not_behind_the_results(tmp_path, has_to):
    config = GenerationConfig(tool_choice=has_to, sampling=SamplingParams(temperature=0))
    handlers = {"weather": lambda _: "warm"}
    async with calling_bench(tmp_path) as bench, Client(bench.server.target) as client:
        bench.says(BERN, "It is warm.")
        async with client.new_session(SETTINGS) as session:
            async for _ in session.use_tools("Well?", handlers, config):
                pass
            kept = [turn.config async for turn in session.turns()]

    assert [turn.tool_choice for turn in kept] == [has_to, ToolChoice(mode=ToolChoice.MODE_AUTO)]
    assert [turn.sampling.temperature for turn in kept] == [0, 0]


async def test_what_is_left_of_a_turn_is_read_and_turns_are_bounded(tmp_path):
    async with calling_bench(tmp_path) as bench, Client(bench.server.target) as client:
        bench.says(NOW)
        async with client.new_session(SETTINGS) as session:
            turns, pieces = [], []
            async for turn in session.use_tools("?", {"clock_now": lambda _: ""}, max_turns=3):
                turns.append(turn)
                async for piece in turn.pieces():
                    pieces.append(piece)
                    break

    assert len(turns) == 3
    assert len(turns[-1].open_calls) == 1
    assert {piece.channel for piece in pieces} == {OutputChannel.OUTPUT_CHANNEL_TOOL_CALL}


async def test_a_tool_without_a_handler_is_told_of_before_any_is_run(tmp_path):
    asked = []
    async with calling_bench(tmp_path) as bench, Client(bench.server.target) as client:
        bench.says(f"{BERN}\n{NOW}")
        async with client.new_session(SETTINGS) as session:
            turns = session.use_tools("Well?", {"weather": asked.append})
            await anext(turns)
            with pytest.raises(LookupError, match="clock_now"):
                await anext(turns)

    assert not asked


def test_answers_that_are_no_text_are_json():
    call = ToolCall(call_id="c1", tool_name="now", arguments_json="{}")

    (item,) = answer_calls([call], {"now": lambda arguments: [arguments, "ö"]})

    assert item == tool_result(call, '[{}, "ö"]')
    assert (item.tool_result.call_id, item.tool_result.text) == ("c1", '[{}, "ö"]')
    assert tool("now").parameters_json_schema == ""
    assert tool("now", parameters={"type": "object"}).parameters_json_schema == '{"type": "object"}'


async def test_programs_without_an_event_loop_answer_calls_too(tmp_path):
    def talk(target):
        with SyncClient(target) as client, client.resume_session(SESSION) as session:
            handlers = {"weather": lambda arguments: arguments["city"]}
            return [
                (turn.answer(), len(turn.open_calls)) for turn in session.use_tools("?", handlers)
            ]

    async with calling_bench(tmp_path) as bench:
        bench.says(BERN, "It is warm.")
        said = await asyncio.to_thread(talk, bench.server.target)

    assert said == [("", 1), ("It is warm.", 0)]


async def test_the_example_runs(tmp_path):
    async with calling_bench(tmp_path) as bench:
        bench.says(BERN, "It is 21 degrees.")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLES / "tools.py"), bench.server.target),
            stdout=asyncio.subprocess.PIPE,
        )
        written, _ = await process.communicate()

    assert process.returncode == 0
    assert written.decode() == '[weather {"city": "Bern"}]\nIt is 21 degrees.\n'
