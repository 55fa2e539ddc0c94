"""Clients that talk while the server's processes are killed or stopped, and started again."""

import asyncio
import random

import pytest
from antiphon.v1 import types_pb2

from antiphon_client import Client, ClientOptions, RetryPolicy
from support.engine_zygote import fork_fake_engine, forked
from support.fake_engine_process import Behaviour
from support.hollow_checkpoint import save_hollow_checkpoint
from support.terminal import CTRL_D, Terminal
from torture.victim import Victim

PATIENT = ClientOptions(
    reconnect=RetryPolicy(first_delay_s=0.02, max_delay_s=0.1), reconnect_timeout_s=90
)
NUM_TOKENS = 400
SETTINGS = (
    "engine.restart_delay_s=0.01",
    "server.drain_limit_s=1",
    # Nothing is constrained, and each start would pay for it.
    "constraints.load_at_start=false",
)
ENGINE = Behaviour(step_interval_s=0.005, alphabet=list(range(300, 900)))


@pytest.fixture
async def victim(tmp_path):
    checkpoint = save_hollow_checkpoint(tmp_path / "model")
    server = await Victim.prepare(
        tmp_path,
        [f"model.source={checkpoint}", *SETTINGS],
        fork_fake_engine(tmp_path / "behaviour.json", ENGINE),
        command=forked("torture.zygote"),
    )
    await server.start()
    assert await server.wait_up(), server.log_path.read_text()
    yield server
    await server.close()


async def disturb(victim, kind):
    """Kills or stops what `kind` says, and starts again what does not start itself."""
    if kind == "stop":
        victim.stop()
    else:
        async with asyncio.timeout(60):
            while not await victim.kill(kind):  # noqa: ASYNC110 - the next engine may not be there yet
                await asyncio.sleep(0.01)
    if kind != "engine":
        await victim.gone()  # Until then it holds the session store.
        await victim.start()


def config(num_tokens=NUM_TOKENS):
    return types_pb2.GenerationConfig(
        stop=types_pb2.StopConditions(max_output_tokens=num_tokens, ignore_eos=True)
    )


@pytest.mark.parametrize("kind", ["engine", "front_end", "both", "stop"])
async def test_an_answer_goes_on_without_a_character_lost_or_repeated(victim, kind):
    async with Client(victim.target, PATIENT) as client, client.new_session() as session:
        # A client that is back late gets much at once, and the rest is to last for a second time.
        turn = await session.send("count", config(2 * NUM_TOKENS))
        pieces, text = turn.text(), ""
        for _ in range(2):
            while len(text) < 40:
                text += await anext(pieces)
            await disturb(victim, kind)
            text += await anext(pieces)
        text += "".join([piece async for piece in pieces])
        kept = [turn async for turn in session.turns()]

    assert turn.completed.usage.output_tokens == 2 * NUM_TOKENS
    assert [each.output.text for each in kept] == [text]


async def test_turns_of_many_clients_run_once_each_whatever_is_killed(victim):
    num_clients = 8
    # Who opens a session is patient for less time than who has one.
    opened = asyncio.Barrier(num_clients + 1)

    async def talk(number):
        async with Client(victim.target, PATIENT) as client, client.new_session() as session:
            await opened.wait()
            turns = [await session.send(f"{number} {i}", config(150)) for i in range(4)]
            answers = [await turn.answer() for turn in turns]
            kept = [turn.output.text async for turn in session.turns()]
            return answers == kept

    async def kill():
        draws = random.Random(7)
        await opened.wait()
        for kind in ("engine", "front_end", "engine", "both", "engine"):
            await asyncio.sleep(draws.uniform(0.1, 0.5))
            await disturb(victim, kind)
            await victim.wait_up()

    async with asyncio.timeout(100):
        *agreed, _ = await asyncio.gather(*(talk(number) for number in range(num_clients)), kill())

    assert agreed == [True] * num_clients


async def test_a_turn_that_is_sent_while_the_server_is_away_runs_once_it_is_back(victim):
    async with Client(victim.target, PATIENT) as client, client.new_session() as session:
        await (await session.send("one", config(3))).answer()
        await victim.kill("both")
        turn = await session.send("two", config(5))
        await victim.gone()  # Until then its socket takes connections.
        await victim.start()
        answer = await turn.answer()
        kept = [turn.output.text async for turn in session.turns()]

    assert kept[1:] == [answer]


@pytest.mark.parametrize("kind", ["both", "stop"])
async def test_a_chat_survives_a_restart_in_the_midst_of_an_answer(victim, kind):
    loop = asyncio.get_running_loop()

    def dialogue():
        words = ["chat", "--target", victim.target, "--max-tokens", str(NUM_TOKENS)]
        with Terminal("antiphon_cli.main", words, environ={}, limit_s=60, forked=False) as terminal:
            terminal.expect("> ")
            terminal.type("count\n")
            num_before = len(terminal.written)
            while len(terminal.written) < num_before + 40:
                terminal.wait_for_more()
            asyncio.run_coroutine_threadsafe(disturb(victim, kind), loop).result(60)
            answer = terminal.expect("\n(cut at --max-tokens")
            terminal.expect("> ")
            terminal.type("/history\n")
            terminal.expect("> count\n")
            history = terminal.expect("\n> ")
            terminal.type(CTRL_D)
            return answer, history, terminal.wait()

    answer, history, status = await asyncio.to_thread(dialogue)

    note = " (reconnecting...)"
    back = "\b" * len(note)
    assert answer.replace(note + back + " " * len(note) + back, "") == history
    assert status == 0
