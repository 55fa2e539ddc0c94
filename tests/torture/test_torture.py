"""Kills in small numbers; `make torture` has larger ones."""

from pathlib import Path

import pytest

from torture.run import Torture, check_tally, torture


@pytest.mark.timeout(900)
async def test_no_kill_loses_or_doubles_what_was_told(tmp_path: Path):
    spec = Torture(num_kills=200, num_clients=4, seed=20, num_run_again=30, forked=True)

    tally = await torture(spec, tmp_path)

    check_tally(tally)
    assert tally.counts["kills"] == 200
