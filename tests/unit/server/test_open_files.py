import resource

import pytest
from structlog.testing import capture_logs

from antiphon_server.config import ServerConfig
from antiphon_server.open_files import NUM_OTHER_FILES, allow_open_files

NEEDED = 2 * 100 + NUM_OTHER_FILES
UNLIMITED = resource.RLIM_INFINITY


class Limits:
    """A process's limit of open files."""

    def __init__(self, limit: int, highest: int) -> None:
        self.held = (limit, highest)

    def get(self, kind: int) -> tuple[int, int]:
        assert kind == resource.RLIMIT_NOFILE
        return self.held

    def set(self, kind: int, limits: tuple[int, int]) -> None:
        assert kind == resource.RLIMIT_NOFILE
        self.held = limits


@pytest.mark.parametrize(
    ("before", "limit", "warns"),
    [
        ((100, 5000), NEEDED, False),
        ((100, NEEDED), NEEDED, False),
        ((100, UNLIMITED), NEEDED, False),
        ((4000, 5000), 4000, False),
        ((UNLIMITED, UNLIMITED), UNLIMITED, False),
        ((100, 300), 300, True),
        ((300, 300), 300, True),
    ],
)
def test_files_for_all_connections_are_allowed_where_the_process_may(
    before: tuple[int, int], limit: int, warns: bool
) -> None:
    limits = Limits(*before)

    with capture_logs() as logs:
        allow_open_files(
            ServerConfig(max_connections=100), limit_of=limits.get, set_limit=limits.set
        )

    assert limits.held == (limit, before[1])
    assert [entry["needed"] for entry in logs] == [NEEDED] * warns
