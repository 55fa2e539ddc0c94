"""The client and the command against the real front end, over an engine that is scripted."""

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from antiphon.v1 import session_pb2, types_pb2

from antiphon_client import (
    AdminClient,
    AlreadyExists,
    Client,
    InvalidArgument,
    NotFound,
    Unimplemented,
    raw_tokens,
    user,
)
from support.fake_engine import FACTS, FakeEngine
from support.scripted_services import serving
from support.scripted_sessions import Conversing
from support.server import running_server

ROOT = Path(__file__).parents[3]


def at_most(num_tokens):
    return types_pb2.GenerationConfig(
        stop=types_pb2.StopConditions(max_output_tokens=num_tokens, ignore_eos=True)
    )


@pytest.fixture
async def running(tmp_path):
    facts = msgspec.structs.replace(FACTS, context_tokens=4096)
    engine = FakeEngine(facts=facts, step_interval_s=0.002)
    async with running_server(tmp_path, engine=engine) as server:
        yield server


@pytest.fixture
async def client(running):
    async with Client(running.target) as connected:
        yield connected


async def test_streamed_and_whole_generations_agree(client):
    config = at_most(8)
    config.sampling.seed = 3

    whole = await client.generate(raw_tokens([1, 2, 3]), config)
    stream = client.stream_generate(raw_tokens([1, 2, 3]), config)
    pieces = [piece async for piece in stream.text()]

    assert "".join(pieces) == whole.outputs[0].text != ""
    assert stream.completed.usage.output_tokens == whole.usage.output_tokens == 8
    assert stream.finished[0].finish_reason == whole.outputs[0].finish_reason


async def test_a_conversation_is_listed_changed_and_deleted(client):
    settings = session_pb2.Session(instructions="be brief", labels={"owner": "ada"})
    async with client.new_session(settings, session_id="talk") as session:
        answer = await (await session.send("hello " * 40, at_most(4))).answer()
        await (await session.append([user("by the way")])).answer()
        second = await session.send("and?", at_most(4), turn_id="second")
        await second.answer()

    calls = client.sessions
    turns = [turn async for turn in calls.list_turns("sessions/talk")]
    found = [each.name async for each in calls.list({"owner": "ada"})]
    changed = await calls.update(
        session_pb2.Session(name="sessions/talk", instructions="ramble"), ["instructions"]
    )
    await calls.delete("sessions/talk")

    assert turns[0].output.text == answer
    assert [list(turn.input) for turn in turns] == [
        [user("hello " * 40)],
        [user("by the way")],
        [user("and?")],
    ]
    assert turns[2].name == "sessions/talk/turns/second"
    assert second.completed.usage.cached_prompt_tokens > 0
    assert found == ["sessions/talk"]
    assert changed.instructions == "ramble"
    with pytest.raises(NotFound) as caught:
        await calls.get("sessions/talk")
    assert caught.value.reason == "SESSION_NOT_FOUND"


async def test_a_turn_runs_without_a_stream_and_again_under_its_id(client):
    await client.sessions.create(session_id="s")
    turn = session_pb2.StartTurn(turn_id="t", items=[user("hello " * 40)], config=at_most(4))

    first = await client.sessions.run_turn("sessions/s", turn).answer()
    again = await client.sessions.run_turn("sessions/s", turn).answer()
    turn.items[0].message.text = "something else"
    with pytest.raises(AlreadyExists) as caught:
        await client.sessions.run_turn("sessions/s", turn).answer()

    assert first == again != ""
    assert caught.value.reason == "ID_TAKEN"


async def test_a_running_turn_is_cancelled(client):
    async with client.new_session() as session:
        turn = await session.send("count", at_most(3000))
        await anext(turn.text())
        await turn.cancel()
        await turn.answer()

    assert turn.completed.finish_reason == types_pb2.FINISH_REASON_CANCELLED


async def test_a_wrong_field_is_named(client):
    config = types_pb2.GenerationConfig(sampling=types_pb2.SamplingParams(top_p=7))

    with pytest.raises(InvalidArgument) as caught:
        await client.generate("hello", config)

    assert [violation.field for violation in caught.value.violations] == ["config.sampling.top_p"]
    assert caught.value.details.request_id != ""


async def test_what_is_not_built_is_refused_by_name(client):
    config = types_pb2.GenerationConfig(adapter="models/tiny/adapters/none")

    with pytest.raises(Unimplemented) as caught:
        await client.generate("hello", config)

    assert caught.value.reason == "UNSUPPORTED_FEATURE"
    assert "adapter" in caught.value.message


async def test_text_goes_to_tokens_and_back(client):
    token_ids = await client.tokenize("hello")
    rendered = await client.render_prompt("hello")

    assert await client.detokenize(token_ids) == "hello"
    assert "hello" in rendered.text
    assert len(rendered.token_ids) > len(token_ids)


async def test_models_tell_what_they_offer(client):
    models = [model async for model in client.list_models()]

    assert models == [await client.get_model("models/tiny")]
    assert models[0].capabilities.chat


async def test_the_administrative_client_reads_counters_and_settings(running, client):
    await client.generate("hello", at_most(4))

    async with AdminClient(running.admin_target) as admin:
        info = await admin.get_server_info()
        stats = await admin.get_engine_stats()
        watched = await anext(admin.watch_engine_stats(interval_s=0.05))
        num_flushed = await admin.flush_prefix_cache()

    assert info.settings["model.name"] == '"tiny"'
    assert stats.model == watched.model == "models/tiny"
    assert stats.step > 0
    assert num_flushed >= 0


async def test_the_administrative_client_drains_a_server(running, client):
    async with client.new_session() as session:
        turn = await session.send("count", at_most(3000))
        await anext(turn.text())
        async with AdminClient(running.admin_target) as admin:
            drained = await admin.drain(limit_s=0.2)
            info = await admin.get_server_info()
        await turn.answer()

    assert info.draining
    assert (drained.num_finished, drained.num_cancelled) == (0, 1)
    assert turn.completed.finish_reason == types_pb2.FINISH_REASON_CANCELLED


EXAMPLE = ROOT / "clients/examples/two_turns.py"


async def only(frame):
    yield frame


async def test_the_readmes_example_says_that_a_stream_has_ended():
    class Leaving(Conversing):
        async def Converse(self, request_iterator, context):
            # Behind the turn: what is written to a stream that has ended fails in other ways.
            opening = await anext(request_iterator)
            async for response in super().Converse(only(opening), context):
                yield response
            await anext(request_iterator)

    async with serving(sessions=Leaving()) as target:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLE), target, stderr=subprocess.PIPE
        )
        _, complaints = await process.communicate()

    assert (process.returncode, complaints) == (1, b"The server has ended the stream.\n")


async def test_the_readmes_example_talks(running):
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), running.target, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()

    lines = output.decode().splitlines()
    assert process.returncode == 0
    assert lines[0].startswith("This is sessions/")
    assert sum(line.endswith("tokens reused]") for line in lines) == 2
