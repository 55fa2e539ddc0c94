"""The checker's program: looks into constraints where it can be killed for what they do.

It compiles with the engine's own backends, so what it takes the engine will take.
"""

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.grammar import GrammarBackend
from antiphon_engine.api.linked_process import read_start
from antiphon_engine.api.priority import give_way
from antiphon_engine.grammar.backends import Backends
from antiphon_server.constraints.check_messages import CheckerStart
from antiphon_server.constraints.checking import Checking
from antiphon_server.constraints.following import Speller
from antiphon_server.constraints.json_schema import PlanLimits
from antiphon_server.constraints.supervisor import Supervisor
from antiphon_server.constraints.workers import Work

_NICENESS: Final = 5
"""Little: those who wait for a check, or for the last look at an output, have streams as well."""


def run(link: socket.socket, load: Callable[[CheckerStart], Work]) -> None:
    """Works until the front end has gone.

    Args:
        link: Connected to the front end; closed at the end.
        load: Returns what workers do; called once, before the first of them is forked.
    """
    start = read_start(sys.stdin.buffer, CheckerStart)
    # What streams wait for comes first, wherever both need the processor. What takes seconds to
    # load and nobody waits for gives way at once; the rest does behind that.
    if start.backend is GrammarBackend.XGRAMMAR and not start.is_waited_for:
        give_way(_NICENESS)
    work = load(start)
    give_way(_NICENESS)
    supervisor = Supervisor(link, work, num_workers=start.num_workers, limits=start.worker_limits)
    _run_to_the_end(supervisor, link)


def _run_to_the_end(supervisor: Supervisor, link: socket.socket) -> None:
    try:
        supervisor.run()
    except (BrokenPipeError, ConnectionResetError):
        return  # The front end was killed.
    finally:
        link.close()


def _load(start: CheckerStart) -> Work:
    backends = Backends.load(Path(start.checkpoint), vocabulary_size=start.vocabulary_size)
    backends[start.backend]
    limits = PlanLimits(max_depth=start.max_depth, max_grammar_bytes=start.max_grammar_bytes)
    speller = Speller(backends.vocabulary.tokens, backends.vocabulary.control_ids)
    return Checking(backends, limits, speller=speller)


def run_checker(link: socket.socket) -> int:
    """Checks for one front end over `link` until that has gone; returns the exit status."""
    try:
        run(link, _load)
    except StartupError as error:
        print(f"antiphon checker: {error}", file=sys.stderr)
        return 1
    return 0
