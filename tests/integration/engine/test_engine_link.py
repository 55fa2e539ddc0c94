"""The life of the engine's process: death, stall, start and end, with a scripted model."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import AntiphonError, ErrorReason, StartupError
from antiphon_engine.api.handle import EngineState, RequestStream
from antiphon_engine.api.link import EngineLink
from antiphon_engine.api.messages import LoadProgress
from support.engine_links import (
    LIMIT_S,
    TEXT,
    TEXT_AND_END,
    endless,
    failure_of,
    read_all,
    request,
    running,
    until,
)
from support.engine_zygote import fork_script
from support.scripted_engine import Script
from support.serve_command import fork_of


def engine_of(link: EngineLink) -> int:
    """Returns the process id of a forked engine; the link knows its launcher's."""
    assert link.process_id is not None
    engine_id = fork_of(link.process_id)
    assert engine_id is not None
    return engine_id


async def test_death_fails_what_runs_and_the_engine_is_started_again(tmp_path: Path) -> None:
    script = Script(texts={"*": TEXT, "3": [9]}, die_on=[77], raise_on=[88], step_delay_s=0.002)
    states: list[EngineState] = []
    async with running(tmp_path, script) as link:
        link.on_state_change(states.append)

        for fatal in ("a prompt that kills it", "a step that fails", "a signal"):
            states.clear()
            before = link.process_id
            assert before is not None
            running_stream = link.submit(endless(1, 3))
            await running_stream.next()
            if fatal == "a signal":
                os.kill(before, signal.SIGKILL)
            else:
                link.submit(request(77 if fatal == "a prompt that kills it" else 88))

            error = await failure_of(running_stream)

            assert error.reason is ErrorReason.ENGINE_DOWN, fatal
            assert error.retry_delay_s is not None
            with pytest.raises(AntiphonError) as refused:
                link.submit(request(1))
            assert refused.value.reason is ErrorReason.ENGINE_DOWN
            await until(EngineState.READY, link)
            assert states == [EngineState.DOWN, EngineState.STARTING, EngineState.READY]
            assert link.process_id != before
            assert await read_all(link.submit(request(1))) == {0: TEXT_AND_END}


async def test_query_fails_when_the_engine_dies_before_it_answers(tmp_path: Path) -> None:
    async with running(tmp_path, Script()) as link:
        engine_id = engine_of(link)
        os.kill(engine_id, signal.SIGSTOP)
        query = asyncio.create_task(link.stats())
        await asyncio.sleep(0)
        os.kill(engine_id, signal.SIGKILL)

        with pytest.raises(AntiphonError) as caught:
            await query

        assert caught.value.reason is ErrorReason.ENGINE_DOWN


async def test_stalled_engine_takes_nothing_new_until_it_moves_again(tmp_path: Path) -> None:
    script = Script(texts={"*": TEXT})
    async with running(tmp_path, script, stall_limit_s=2.0) as link:
        engine_id = engine_of(link)
        os.kill(engine_id, signal.SIGSTOP)
        stream = link.submit(request(66))
        await until(EngineState.STALLED, link)
        with pytest.raises(AntiphonError) as refused:
            link.submit(request(1))
        assert refused.value.reason is ErrorReason.ENGINE_DOWN

        os.kill(engine_id, signal.SIGCONT)
        await until(EngineState.READY, link)

        assert await read_all(stream) == {0: TEXT_AND_END}


async def test_engine_that_stays_stalled_is_replaced(tmp_path: Path) -> None:
    script = Script(texts={"*": TEXT}, freeze_on={"66": 600.0})
    async with running(tmp_path, script, stall_limit_s=1.0) as link:
        first_id = link.process_id

        error = await failure_of(link.submit(request(66)))

        assert error.reason is ErrorReason.ENGINE_DOWN
        await until(EngineState.READY, link)
        assert link.process_id != first_id


async def test_engine_that_finds_nothing_to_run_says_who_waits_and_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running(tmp_path, Script(texts={"*": TEXT}), fault_max_admissions=1) as link:
        first_id = link.process_id
        assert await read_all(link.submit(request(1))) == {0: TEXT_AND_END}

        error = await failure_of(link.submit(request(1, 2, 3)))

        assert error.reason is ErrorReason.ENGINE_DOWN
        await until(EngineState.READY, link)
        assert link.process_id != first_id
        assert await read_all(link.submit(request(1))) == {0: TEXT_AND_END}

    told = capfd.readouterr().err
    assert "engine stalled" in told
    assert "Nothing runs although requests wait: running=0 waiting=1" in told
    assert "known=3" in told


async def test_loading_tells_its_progress(tmp_path: Path) -> None:
    heard: list[LoadProgress] = []
    link = await EngineLink.start(
        EngineConfig(),
        tmp_path,
        command=fork_script(tmp_path / "script.json", Script()),
        on_progress=heard.append,
    )
    await link.close()

    assert [(p.stage, p.done, p.total) for p in heard] == [
        ("weights", 0, 1),
        ("weights", 1, 1),
        ("warm-up", 0, 1),
        ("warm-up", 1, 1),
    ]


async def test_start_fails_with_the_engines_own_line(tmp_path: Path) -> None:
    command = fork_script(tmp_path / "script.json", Script(load_failure="shard 2 is missing"))

    with pytest.raises(StartupError, match=r"^shard 2 is missing$"):
        await EngineLink.start(EngineConfig(), tmp_path, command=command)


async def test_start_fails_when_settings_do_not_go_together(tmp_path: Path) -> None:
    command = fork_script(tmp_path / "script.json", Script())

    with pytest.raises(StartupError, match="max_step_tokens"):
        await EngineLink.start(EngineConfig(max_step_tokens=8), tmp_path, command=command)


async def test_small_step_budget_tells_how_many_requests_run_at_once(tmp_path: Path) -> None:
    script = Script(texts={"*": TEXT}, step_delay_s=0.002)

    async with running(tmp_path, script, max_rows=8, max_step_tokens=33) as link:
        facts, most = link.facts, 0
        streams = [link.submit(request(*[4] * 40, 3)) for _ in range(6)]
        while (stats := await link.stats()).num_waiting:
            most = max(most, stats.num_running)
        for stream in streams:
            stream.close()

    assert facts is not None
    assert facts.max_rows == 2
    assert most <= 2


@pytest.mark.parametrize("command", [["/no/such/program"], ["/bin/false"]])
async def test_start_fails_when_the_process_does(tmp_path: Path, command: list[str]) -> None:
    with pytest.raises(StartupError, match="engine"):
        await EngineLink.start(EngineConfig(), tmp_path, command=command)


async def test_start_can_be_given_up(tmp_path: Path) -> None:
    command = fork_script(tmp_path / "script.json", Script(load_delay_s=600.0))

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(
            EngineLink.start(EngineConfig(), tmp_path, command=command), timeout=1.0
        )


async def test_close_ends_running_work_and_the_process(tmp_path: Path) -> None:
    async with running(tmp_path, Script(texts={"*": [9]})) as link:
        stream = link.submit(endless(1))
        await stream.next()
        process_id = link.process_id
        assert process_id is not None
        assert os.getsid(process_id) != os.getsid(0)
        engine_id = engine_of(link)

        await link.close()

        assert (await failure_of(stream)).reason is ErrorReason.ENGINE_DOWN
        assert link.state is EngineState.DOWN
        for ended in (process_id, engine_id):
            with pytest.raises(ProcessLookupError):
                os.kill(ended, 0)


def test_runs_on_uvloop_too(tmp_path: Path) -> None:
    async def serve() -> dict[int, list[int]]:
        async with running(tmp_path, Script(texts={"*": TEXT})) as link:
            return await read_all(link.submit(request(1)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(serve()) == {0: TEXT_AND_END}


def test_front_end_that_was_held_up_itself_does_not_take_its_engine_for_stalled(
    tmp_path: Path,
) -> None:
    told: list[EngineState] = []

    async def serve() -> bool:
        async with running(tmp_path, Script(texts={"*": TEXT}), stall_limit_s=1.0) as link:
            first_id = link.process_id
            link.on_state_change(told.append)
            for _ in range(2):
                await asyncio.sleep(0.3)
                time.sleep(2.5)  # noqa: ASYNC251 - stands still as a process does that was stopped
            same = await read_all(link.submit(request(1))) == {0: TEXT_AND_END}
            return same and link.process_id == first_id

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(serve())
    assert told == [EngineState.DOWN]  # From the end of the block.


async def test_every_request_has_exactly_one_outcome_whatever_happens(
    tmp_path: Path, scale: int
) -> None:
    rng = random.Random(1)
    script = Script(texts={"*": TEXT, "3": [9]}, die_on=[77], step_delay_s=0.001)
    num_lives, num_deaths = 150 * scale, 2 * scale
    deadly = set(rng.sample(range(num_lives), num_deaths))
    outcomes: list[str] = []

    async def live(link: EngineLink, number: int) -> None:
        num_outputs = rng.choice([1, 1, 3])
        last = 77 if number in deadly else rng.choice([3, 4])
        try:
            stream = link.submit(request(*[4] * rng.randint(1, 60), last, num_outputs=num_outputs))
        except AntiphonError as error:
            outcomes.append(error.reason)
            return
        outcomes.append(await _outcome(rng, stream, num_outputs))

    async with running(tmp_path, script, max_rows=4, max_step_tokens=35) as link:
        states: list[EngineState] = []
        link.on_state_change(states.append)
        lives: list[Awaitable[None]] = []
        for number in range(num_lives):
            lives.append(asyncio.ensure_future(live(link, number)))
            await asyncio.sleep(rng.random() * 0.02)
            if link.state is EngineState.DOWN:
                await until(EngineState.READY, link)
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*lives)
        await until(EngineState.READY, link)
        stats = await link.stats()

    assert len(outcomes) == num_lives
    assert set(outcomes) <= {"ended", "closed", "ENGINE_DOWN"}
    assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0)
    assert 0 < states.count(EngineState.READY) <= num_deaths


async def _outcome(rng: random.Random, stream: RequestStream, num_outputs: int) -> str:
    """Lives one request, perhaps ended early, and checks that nothing ends twice."""
    early: Callable[[], None] | None = rng.choice(
        [None, None, stream.cancel, lambda: stream.finish_output(0, 1)]
    )
    ended: set[int] = set()
    try:
        async with asyncio.timeout(LIMIT_S):
            while len(ended) < num_outputs:
                news = await stream.next()
                for i, output in news.outputs.items():
                    assert i not in ended, "news of an output that has ended"
                    if output.ended is not None:
                        ended.add(i)
                if early is not None:
                    early()
                    early = None
                if rng.random() < 0.03:
                    stream.close()
                    return "closed"
    except AntiphonError as error:
        return error.reason
    return "ended"
