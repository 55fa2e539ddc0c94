"""Kills with the real engine, on a tiny random checkpoint."""

from pathlib import Path

import pytest

from torture.run import Torture, check_tally, torture


@pytest.mark.timeout(600)
async def test_no_kill_of_the_real_engine_loses_or_doubles_what_was_told(tmp_path: Path):
    # Calls over crashes have tests of their own; here each life would load a checker for them.
    spec = Torture(
        num_kills=10,
        num_clients=3,
        seed=21,
        real=True,
        num_run_again=10,
        forked=True,
        tools_share=0.0,
    )

    tally = await torture(spec, tmp_path)

    check_tally(tally)
    assert tally.counts["kills"] == 10
