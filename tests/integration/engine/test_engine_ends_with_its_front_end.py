"""An engine process never outlives its front end for long, whatever it is doing."""

import asyncio
import os
import signal
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.frames import encode_frame, front_end_reader
from antiphon_engine.api.linked_process import LinkedProcess
from antiphon_engine.api.messages import (
    Answer,
    GenerationRequest,
    LoadProgress,
    ReadStats,
    Ready,
    SamplingParams,
    StopParams,
    Submit,
    ToFrontEnd,
)
from antiphon_engine.api.process import EngineStart, spawn_engine
from support.engine_zygote import fork_script
from support.scripted_engine import Script, write_script

FROZEN = 66
LIMIT_S = 60.0
"""What only an engine that stays would reach."""

FRONT_END = """
import asyncio, sys
from pathlib import Path
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.link import EngineLink

async def main():
    link = await EngineLink.start(EngineConfig(), Path("."), command=sys.argv[1:])
    print(link.process_id, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def spawn(tmp_path: Path, script: Script) -> LinkedProcess:
    command = fork_script(tmp_path / "script.json", script)
    start = EngineStart(config=EngineConfig(), checkpoint=str(tmp_path))
    return spawn_engine(command, start)


async def hear(engine: LinkedProcess, kind: type[ToFrontEnd]) -> None:
    """Reads until a message of this kind comes."""
    loop, reader = asyncio.get_running_loop(), front_end_reader()
    engine.link.setblocking(False)
    async with asyncio.timeout(60):
        while True:
            messages = reader.feed(await loop.sock_recv(engine.link, 1 << 16))
            if any(isinstance(message, kind) for message in messages):
                return


async def test_idle_engine_ends_when_the_link_is_closed(tmp_path: Path) -> None:
    engine = spawn(tmp_path, Script())
    await hear(engine, Ready)

    engine.link.close()

    assert await asyncio.wait_for(engine.process.wait(), LIMIT_S) == 0


async def test_engine_ends_in_the_middle_of_a_step(tmp_path: Path) -> None:
    engine = spawn(tmp_path, Script(freeze_on={str(FROZEN): 600.0}))
    await hear(engine, Ready)
    frozen = GenerationRequest(
        prompt=array("i", [FROZEN]).tobytes(),
        sampling=SamplingParams(seed=0),
        stop=StopParams(max_output_tokens=1),
    )
    engine.link.send(
        encode_frame(Submit(request_id=1, request=frozen)) + encode_frame(ReadStats(query_id=1))
    )
    # Answered just before the step.
    await hear(engine, Answer)

    engine.link.close()

    assert await asyncio.wait_for(engine.process.wait(), LIMIT_S) != 0


async def test_engine_ends_while_it_loads(tmp_path: Path) -> None:
    engine = spawn(tmp_path, Script(load_delay_s=600.0))
    await hear(engine, LoadProgress)

    engine.link.close()

    assert await asyncio.wait_for(engine.process.wait(), LIMIT_S) != 0


@pytest.mark.parametrize(
    ("program", "slow"),
    [
        ("antiphon_engine.__main__", "torch"),
        ("antiphon_server.constraints.checker_process", "antiphon_engine.grammar"),
        ("antiphon_engine.checkpoint.__main__", "torch"),
        ("antiphon_engine.offline_bench.__main__", "torch"),
        ("antiphon_engine.cuda.attention_build", "torch"),
    ],
)
def test_a_process_is_tied_to_its_parent_before_it_imports_what_takes_long(
    program: str, slow: str
) -> None:
    code = f"import sys, {program}; print({slow!r} in sys.modules)"

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "False\n"


async def test_a_process_that_still_loads_ends_when_its_front_end_is_killed() -> None:
    """Even while no thread of it could run: it sleeps where others import."""
    loading = (
        "import sys, time; from antiphon_engine.api.linked_process import link_of_this_process;"
        " link = link_of_this_process(sys.argv[1:]); link.send(b'!'); time.sleep(600)"
    )
    code = (
        "import asyncio, sys, time\n"
        "from antiphon_engine.api.linked_process import spawn\n"
        "async def start():\n"
        f"    started = spawn([sys.executable, '-c', {loading!r}], {{}})\n"
        "    started.link.recv(1); print(started.process.pid, flush=True); time.sleep(600)\n"
        "asyncio.run(start())"
    )
    await _wait_for_the_end_with_a_killed_front_end(code)


async def test_converter_ends_when_its_front_end_is_killed(tmp_path: Path) -> None:
    pipe = tmp_path / "endless.gguf"
    os.mkfifo(pipe)  # Whoever opens it waits.
    code = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-m', 'antiphon_engine.checkpoint', "
        f"{str(pipe)!r}, {str(tmp_path)!r}], stdout=subprocess.PIPE); "
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(600)"
    )
    await _wait_for_the_end_with_a_killed_front_end(code)


async def test_engine_ends_when_its_front_end_is_killed(tmp_path: Path) -> None:
    command = write_script(tmp_path / "script.json", Script())
    front_end = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FRONT_END, *command, stdout=asyncio.subprocess.PIPE
    )
    assert front_end.stdout is not None
    engine_id = int(await asyncio.wait_for(front_end.stdout.readline(), 60))

    front_end.send_signal(signal.SIGKILL)
    await front_end.wait()

    async with asyncio.timeout(LIMIT_S):
        while _runs(engine_id):  # noqa: ASYNC110 - another process's end is no event here
            await asyncio.sleep(0.02)


async def _wait_for_the_end_with_a_killed_front_end(code: str) -> None:
    """Runs a front end by `code`, which tells its child's id; kills it, and the child must end."""
    front_end = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    assert front_end.stdout is not None
    process_id = int(await asyncio.wait_for(front_end.stdout.readline(), 60))

    front_end.send_signal(signal.SIGKILL)
    await front_end.wait()

    async with asyncio.timeout(LIMIT_S):
        while _runs(process_id):  # noqa: ASYNC110 - another process's end is no event here
            await asyncio.sleep(0.02)


def _runs(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
        # Nobody may have collected it yet.
        return "State:\tZ" not in Path(f"/proc/{process_id}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
