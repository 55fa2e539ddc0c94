"""Clients that talk while the server is stopped and started again."""

import asyncio
from contextlib import AsyncExitStack

import msgspec
import pytest
from antiphon.v1 import types_pb2

from antiphon_client import Client, ClientOptions, RetryPolicy
from support.fake_engine import FACTS, FakeEngine
from support.server import running_server
from support.terminal import CTRL_D, Terminal

PATIENT = ClientOptions(
    reconnect=RetryPolicy(first_delay_s=0.02, max_delay_s=0.1), reconnect_timeout_s=60
)
NUM_TOKENS = 300


class Restarts:
    """A server on one address and one store, which a test stops and starts."""

    def __init__(self, directory):
        self._directory = directory
        self._stack = AsyncExitStack()
        self.target = f"unix:{directory}/antiphon.sock"

    async def start(self):
        facts = msgspec.structs.replace(FACTS, context_tokens=4096)
        settings = [f"server.listen={self.target}"]
        engine = FakeEngine(facts=facts, step_interval_s=0.003)
        serving = running_server(self._directory, engine=engine, settings=settings)
        await self._stack.enter_async_context(serving)

    async def stop(self):
        await self._stack.aclose()


@pytest.fixture
async def server(tmp_path):
    restarts = Restarts(tmp_path)
    await restarts.start()
    yield restarts
    await restarts.stop()


def config():
    return types_pb2.GenerationConfig(
        sampling=types_pb2.SamplingParams(temperature=0),
        stop=types_pb2.StopConditions(max_output_tokens=NUM_TOKENS, ignore_eos=True),
    )


async def test_an_answer_goes_on_behind_restarts_without_a_character_lost_or_repeated(server):
    async with Client(server.target, PATIENT) as client, client.new_session() as session:
        turn = await session.send("count", config())
        pieces, text = turn.text(), ""
        for _ in range(2):
            text += await anext(pieces)
            await server.stop()
            await server.start()
        text += "".join([piece async for piece in pieces])
        kept = [turn async for turn in session.turns()]

    assert turn.completed.usage.output_tokens == NUM_TOKENS
    assert [each.output.text for each in kept] == [text]


async def test_a_turn_that_is_sent_while_the_server_is_away_runs_once_it_is_back(server):
    async with Client(server.target, PATIENT) as client, client.new_session() as session:
        await (await session.send("one", config())).answer()
        await server.stop()
        turn = await session.send("two", config())
        await server.start()
        answer = await turn.answer()
        kept = [turn async for turn in session.turns()]

    assert [each.output.text for each in kept][1:] == [answer]


async def test_a_chat_survives_a_restart_in_the_midst_of_an_answer(server):
    loop = asyncio.get_running_loop()

    async def restart():
        await server.stop()
        await server.start()

    def dialogue():
        words = ["chat", "--target", server.target, "--temperature", "0"]
        words += ["--max-tokens", str(NUM_TOKENS)]
        with Terminal("antiphon_cli.main", words, environ={}) as terminal:
            terminal.expect("> ")
            terminal.type("count\n")
            first = terminal.written
            while len(terminal.written) < len(first) + 20:
                terminal.wait_for_more()
            asyncio.run_coroutine_threadsafe(restart(), loop).result(60)
            answer = terminal.expect("\n(cut at --max-tokens")
            terminal.expect("> ")
            terminal.type("/history\n")
            terminal.expect("> count\n")
            history = terminal.expect("\n> ")
            terminal.type(CTRL_D)
            return answer, history, terminal.wait()

    answer, history, status = await asyncio.to_thread(dialogue)

    assert answer == history
    assert status == 0
