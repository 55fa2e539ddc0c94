"""How a process of the front end's own is started, and how it ends."""

import asyncio
import json
import mmap
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
import uvloop

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.linked_process import spawn
from antiphon_engine.api.process import EngineStart, spawn_engine

NUM_PAGES = 4096


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_start_copies_none_of_the_starters_memory() -> None:
    """The kernel would mark all of it, and copy what is written to; streams would wait for both."""
    memory = mmap.mmap(-1, NUM_PAGES * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)

    def write_everywhere() -> None:
        for place in range(0, len(memory), mmap.PAGESIZE):
            memory[place] += 1

    async def start_one() -> int:
        write_everywhere()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        started = spawn(["sh", "-c", "sleep 600"], {})
        write_everywhere()
        num_copied = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        await started.end(0)
        started.link.close()
        return num_copied

    assert uvloop.run(start_one()) < NUM_PAGES // 4


def test_a_process_is_told_more_than_a_pipe_holds(tmp_path: Path) -> None:
    said = {"words": "x" * 500_000}

    async def start_one() -> int:
        started = spawn(["sh", "-c", 'cat > "$0"', str(tmp_path / "told")], said)
        started.link.close()
        return await started.process.wait()

    assert asyncio.run(start_one()) == 0
    assert json.loads((tmp_path / "told").read_text()) == said


def test_a_process_that_does_not_end_is_killed_with_its_children() -> None:
    code = (
        "import os, socket, sys, time; os.fork();"
        " link = socket.socket(fileno=int(sys.argv[2])); link.send(b'.'); time.sleep(600)"
    )

    async def start_one() -> tuple[int | None, int | None, bytes]:
        started = spawn([sys.executable, "-c", code], {})
        started.link.settimeout(60)
        for _ in ("parent", "child"):
            started.link.recv(1)
        running = started.process.returncode
        await started.end(0)
        left = started.link.recv(1)  # Ends once nobody has the other end.
        started.link.close()
        return running, started.process.returncode, left

    assert asyncio.run(start_one()) == (None, -signal.SIGKILL, b"")


def test_a_process_that_ends_by_itself_tells_its_status() -> None:
    async def start_one() -> int | None:
        engine = spawn_engine(
            ["sh", "-c", "exit 7"], EngineStart(config=EngineConfig(), checkpoint="")
        )
        await engine.end(60)
        engine.link.close()
        return engine.process.returncode

    assert uvloop.run(start_one()) == 7


def test_a_command_that_cannot_be_run_is_told_and_leaves_nothing_open() -> None:
    before = num_open_files()

    async def start_one() -> None:
        spawn_engine(["/not/there"], EngineStart(config=EngineConfig(), checkpoint=""))

    with pytest.raises(StartupError, match="'/not/there'"):
        asyncio.run(start_one())
    assert num_open_files() == before


def test_a_process_whose_front_end_has_gone_ends_before_it_loads_anything() -> None:
    code = (
        "import sys; from antiphon_engine.api.linked_process import link_of_this_process;"
        " link_of_this_process(sys.argv[1:]); sys.exit(7)"
    )

    async def start_one() -> int:
        started = spawn([sys.executable, "-c", code], {})
        started.link.close()
        return await started.process.wait()

    assert asyncio.run(start_one()) == 1
