"""How many files, and so connections, the process may have open."""

import resource
from collections.abc import Callable
from typing import Final

import structlog

from antiphon_server.config import ServerConfig

NUM_OTHER_FILES: Final = 256
"""For all but callers' connections: the store, engine and checkers, their starts, copies, logs."""

_KIND: Final = resource.RLIMIT_NOFILE


def allow_open_files(
    config: ServerConfig,
    *,
    limit_of: Callable[[int], tuple[int, int]] = resource.getrlimit,
    set_limit: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
) -> None:
    """Raises the limit of open files to what the connections of both ports may need.

    The usual limit is that of `max_connections`. Idle connections would use it up, and an engine
    or a checker that ended could not be started again. Warns where the process may not have as
    many.

    Args:
        config: Has `max_connections`.
        limit_of: Returns a limit of this process's that holds, and its highest.
        set_limit: Sets both.
    """
    needed = 2 * config.max_connections + NUM_OTHER_FILES
    limit, highest = limit_of(_KIND)
    # Unlimited is told as a number that is below all others.
    allowed = needed if highest == resource.RLIM_INFINITY else min(needed, highest)
    if limit != resource.RLIM_INFINITY and limit < allowed:
        set_limit(_KIND, (allowed, highest))
    if allowed < needed:
        structlog.get_logger().warning(
            "connections may use up the files that this process may have open; raise the limit"
            " (LimitNOFILE, ulimit -n), or lower server.max_connections",
            open_files=highest,
            needed=needed,
            max_connections=config.max_connections,
        )
