"""A client's sessions against the real front end, over an engine that is scripted."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from antiphon.v1 import session_pb2, types_pb2

from antiphon_cli.main import main
from antiphon_client import (
    Aborted,
    Client,
    ClientOptions,
    RetryPolicy,
    SessionAttached,
    after,
    beginning,
    user,
)
from support.fake_engine import FACTS, FakeEngine
from support.server import running_server

EXAMPLES = Path(__file__).parents[3] / "clients/examples"
PATIENT = ClientOptions(
    reconnect=RetryPolicy(first_delay_s=0.02, max_delay_s=0.1), reconnect_timeout_s=60
)


def at_most(num_tokens):
    return types_pb2.GenerationConfig(
        stop=types_pb2.StopConditions(max_output_tokens=num_tokens, ignore_eos=True)
    )


def engine(step_interval_s=0.002):
    facts = msgspec.structs.replace(FACTS, context_tokens=4096)
    return FakeEngine(facts=facts, step_interval_s=step_interval_s)


@pytest.fixture
async def running(tmp_path):
    async with running_server(tmp_path, engine=engine()) as server:
        yield server


@pytest.fixture
async def client(running):
    async with Client(running.target, PATIENT) as connected:
        yield connected


async def names(turns):
    return [turn.name.rpartition("/")[2] async for turn in turns]


async def test_a_session_is_forked_and_both_go_on_by_themselves(client):
    async with client.new_session(session_id="trunk") as trunk:
        await (await trunk.send("one", at_most(4), turn_id="t1")).answer()
        await (await trunk.send("two", at_most(4), turn_id="t2")).answer()
        fork = await trunk.fork(turn_name="sessions/trunk/turns/t1", session_id="branch")
        async with client.resume_session(fork.name) as branch:
            await (await branch.send("other", at_most(4), turn_id="t3")).answer()

            assert await names(branch.turns()) == ["t1", "t3"]
        assert await names(trunk.turns()) == ["t1", "t2"]

    assert fork.parent_session == "sessions/trunk"


async def test_a_session_is_taken_back_and_its_last_turn_answered_again(client):
    async with client.new_session() as session:
        for number in range(3):
            await (await session.send("x", at_most(3), turn_id=f"t{number}")).answer()
        await session.rewind(after(f"{session.name}/turns/t1"))
        again = await session.regenerate(at_most(5))
        await again.answer()

        assert await names(session.turns()) == ["t0", again.turn_id]
        await session.rewind(beginning())
        assert await names(session.turns()) == []
        with pytest.raises(ValueError, match="no turn yet"):
            await session.regenerate()


async def test_an_answer_that_was_cut_is_continued(client):
    async with client.new_session() as session:
        await (await session.send("x", at_most(3))).answer()
        more = await session.continue_answer(at_most(4))
        await more.answer()

    assert more.completed.usage.output_tokens == 4


async def test_a_running_turn_is_interrupted_by_the_next(client):
    async with client.new_session() as session:
        first = await session.send("count", at_most(3000))
        pieces = first.text()
        read = await anext(pieces)
        second = await session.interrupt("no", at_most(3))
        await second.answer()
        rest = "".join([piece async for piece in pieces])
        kept = [turn async for turn in session.turns()]

    assert first.completed.finish_reason == types_pb2.FINISH_REASON_CANCELLED
    assert first.completed.kept_sequence > 0
    assert kept[0].output.text.startswith(read)
    assert (read + rest).startswith(kept[0].output.text)


async def test_a_session_is_taken_from_another_client(running, client):
    async with Client(running.target, PATIENT) as other, client.new_session() as session:
        await (await session.send("x", at_most(2))).answer()
        with pytest.raises(SessionAttached):
            await other.resume_session(session.name).open()
        async with other.resume_session(session.name, take_over=True) as taken:
            assert await (await taken.send("y", at_most(2))).answer() != ""
            with pytest.raises(Aborted):
                await (await session.send("z", at_most(2))).answer()


async def test_a_turn_is_followed_by_name_from_a_cursor(client):
    async with client.new_session() as session:
        turn = await session.send("count", at_most(12))
        whole = [event async for event in turn]
        name = f"{session.name}/turns/{turn.turn_id}"
        text = "".join(event.delta.text for event in whole)
        cursor = session_pb2.TurnCursor(epoch=whole[0].epoch, sequence=4)
        rest = await client.sessions.stream_turn_events(name, cursor).answer()

        assert await client.sessions.stream_turn_events(name).answer() == text
    assert text.endswith(rest)
    assert 0 < len(rest) < len(text)


async def test_items_are_appended_by_a_call(client):
    await client.sessions.create(session_id="s")
    turn = await client.sessions.append_turn("sessions/s", [user("by the way")], turn_id="a")

    assert turn.state == session_pb2.Turn.STATE_COMPLETED
    assert await names(client.sessions.list_turns("sessions/s")) == ["a"]


async def test_a_session_is_exported_and_imported_with_its_history(running, client, tmp_path):
    settings = session_pb2.Session(instructions="be brief", labels={"owner": "ada"})
    async with client.new_session(settings, session_id="talk", items="hello") as session:
        answers = [await (await session.send(str(i), at_most(5))).answer() for i in range(3)]
    file = tmp_path / "talk.jsonl"

    flags = ["--target", running.target]
    words = ["session", "export", "talk", "--output", str(file), *flags]
    assert await asyncio.to_thread(main, words) == 0
    words = ["session", "import", str(file), "--session-id", "copy", *flags]
    assert await asyncio.to_thread(main, words) == 0

    copy = await client.sessions.get("sessions/copy")
    (turn,) = [turn async for turn in client.sessions.list_turns("sessions/copy")]
    said = [item.message.text for item in turn.input]
    assert (copy.instructions, dict(copy.labels)) == ("be brief", {"owner": "ada"})
    assert said == ["hello", "0", answers[0], "1", answers[1], "2", answers[2]]
    assert json.loads(file.read_text().splitlines()[-1]) == {"end": {"num_turns": 4}}
    async with client.resume_session("sessions/copy") as session:
        assert await (await session.send("go on", at_most(3))).answer() != ""


async def test_the_example_of_a_session_that_outlives_its_server_runs(running):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLES / "resume.py"), running.target), stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()

    lines = output.decode().splitlines()
    assert process.returncode == 0
    assert lines[0].startswith("This is sessions/")
    assert lines[-1].endswith("tokens]")


async def test_a_session_outlives_the_age_limits_of_its_connections(tmp_path):
    settings = ["server.max_connection_age_s=1"]
    async with (
        running_server(tmp_path, engine=engine(0.004), settings=settings) as server,
        Client(server.target, PATIENT) as client,
        client.new_session() as session,
    ):
        answers, num_aged = [], 0
        for number in range(3):
            turn = await session.send("count", at_most(350), turn_id=f"t{number}")
            answers.append(await turn.answer())
            num_aged += session.go_away is not None
        kept = [turn.output.text async for turn in session.turns()]

    assert kept == answers
    assert num_aged > 0, "no stream was asked to end"
    assert session.ended is None or session.ended.code.name == "CANCELLED"
