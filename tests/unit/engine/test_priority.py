"""Who has the processor first, asked of the kernel."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon_engine.api.priority import lower, lower_to_leftovers

GROUP = Path("/proc/self/autogroup")
GIVES_WAY = """
import os, sys
from pathlib import Path
from antiphon_engine.api.priority import give_way

for niceness in sys.argv[1:]:
    give_way(int(niceness))
group = Path("/proc/self/autogroup")
print(os.getpriority(os.PRIO_PROCESS, 0), *group.read_text().split()[-1:] if group.exists() else [])
"""


@pytest.fixture
def thread() -> Iterator[threading.Thread]:
    let_go = threading.Event()
    thread = threading.Thread(target=let_go.wait)
    thread.start()
    yield thread
    let_go.set()
    thread.join()


def niceness_of(thread: threading.Thread) -> int:
    assert thread.native_id is not None
    return os.getpriority(os.PRIO_PROCESS, thread.native_id)


def told_by_process(*niceness: int, leads_session: bool) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", GIVES_WAY, *map(str, niceness)],
        check=True,
        capture_output=True,
        start_new_session=leads_session,
        timeout=60,
    )
    return [int(word) for word in done.stdout.split()]


def test_a_process_that_leads_a_session_lowers_all_of_it() -> None:
    own, *group = told_by_process(7, leads_session=True)

    assert own == 7
    assert group == ([7] if GROUP.exists() else [])


def test_a_process_in_a_session_of_others_lowers_itself_alone() -> None:
    own, *group = told_by_process(7, leads_session=False)

    assert own == 7
    assert not GROUP.exists() or group == [int(GROUP.read_text().split()[-1])]


def test_one_that_is_nicer_already_stays_so(thread: threading.Thread) -> None:
    lower(thread, 9)
    lower(thread, 4)

    assert niceness_of(thread) == 9
    assert told_by_process(9, 4, leads_session=False)[0] == 9


def test_a_thread_is_lowered_without_the_others(thread: threading.Thread) -> None:
    before = niceness_of(threading.main_thread())

    lower_to_leftovers(thread)

    assert thread.native_id is not None
    assert os.sched_getscheduler(thread.native_id) == os.SCHED_IDLE
    assert niceness_of(thread) == 19
    assert niceness_of(threading.main_thread()) == before


def test_a_thread_that_has_ended_is_let_be() -> None:
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()

    lower(ended, 19)
    lower_to_leftovers(ended)
