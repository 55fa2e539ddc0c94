"""The checker's program: looks into constraints where it can be killed for what they do.

It compiles with the engine's own backends, so what it takes the engine will take.
"""

import socket
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final

import msgspec

from antiphon_engine.api.process import link_of_this_process
from antiphon_server.constraints.check_messages import CheckerStart
from antiphon_server.constraints.supervisor import Supervisor
from antiphon_server.constraints.workers import Work

_MAX_START_BYTES: Final = 1 << 20


def run(arguments: Sequence[str], load: Callable[[CheckerStart], Work]) -> None:
    """Works until the front end has gone.

    Args:
        arguments: The command line's.
        load: Returns what workers do; called once, before the first of them is forked.
    """
    link = link_of_this_process(arguments)
    start = _read_start(sys.stdin.buffer)
    supervisor = Supervisor(
        link, load(start), num_workers=start.num_workers, limits=start.worker_limits
    )
    _run_to_the_end(supervisor, link)


def _read_start(stream: BinaryIO) -> CheckerStart:
    said = stream.read(_MAX_START_BYTES)
    if not said:
        sys.exit("The front end ended before it said what to check for.")
    return msgspec.json.decode(said, type=CheckerStart)


def _run_to_the_end(supervisor: Supervisor, link: socket.socket) -> None:
    try:
        supervisor.run()
    except (BrokenPipeError, ConnectionResetError):
        return  # The front end was killed.
    finally:
        link.close()
