"""Kills in small numbers; `make torture` has larger ones."""

from pathlib import Path

import pytest

from torture.run import Torture, torture
from torture.tally import Tally


def check(tally: Tally) -> None:
    assert not tally.faults, (tally.seed, tally.faults[:5], list(tally.events)[-100:])
    assert tally.counts["turns_acknowledged"]
    assert tally.counts["turns_struck"]
    assert tally.counts["streams_resumed"]


@pytest.mark.timeout(900)
async def test_no_kill_loses_or_doubles_what_was_told(tmp_path: Path):
    spec = Torture(num_kills=200, num_clients=4, seed=20, num_run_again=30)

    tally = await torture(spec, tmp_path)

    check(tally)
    assert tally.counts["kills"] == 200


@pytest.mark.timeout(600)
async def test_no_kill_of_the_real_engine_loses_or_doubles_what_was_told(tmp_path: Path):
    spec = Torture(num_kills=10, num_clients=3, seed=21, real=True, num_run_again=10)

    tally = await torture(spec, tmp_path)

    check(tally)
    assert tally.counts["kills"] == 10
