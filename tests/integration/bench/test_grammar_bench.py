"""The benchmark of grammars: that what it says of a backend is so."""

import json
import os
import time
from pathlib import Path

import pytest

from bench.grammar_workers import Crash, Overrun, Workers
from support.forked_process import ForkedProcess
from support.hollow_checkpoint import save_hollow_checkpoint

ROOT = Path(__file__).parents[3]
LIMIT_S = 100.0
OWN_CASES = ROOT / "tests" / "data" / "grammar_cases.jsonl"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the benchmark prints of our own cases, with a small tokenizer."""
    checkpoint = save_hollow_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    command = ["bench.grammar", str(OWN_CASES), "--checkpoint", str(checkpoint)]
    command += ["--failures", "xgrammar", "--by-group"]
    bench = ForkedProcess(command, environ=os.environ, directory=ROOT)
    out, err = bench.communicate(LIMIT_S)
    assert bench.returncode == 0, err
    return out


def test_what_is_ours_and_each_library_alone_are_told_in_the_last_line(
    said: str,
):
    ours = json.loads(said.splitlines()[-1])

    num_cases = len(OWN_CASES.read_text().splitlines())
    assert {ours["schemas"], ours["xgrammar"]["schemas"]} == {num_cases}
    assert (ours["invalid_accepted"], ours["crashes"], ours["timeouts"]) == (0, 0, 0)
    assert ours["passing_share"] > ours["xgrammar"]["passing_share"]
    assert ours["xgrammar"]["invalid_accepted"] > 0
    assert ours["llguidance"]["refused"] > 0


def test_failures_are_listed_with_the_text_that_tells_them(
    said: str,
):
    assert "== xgrammar dependent_required" in said
    assert '   invalid accepted: {"card":"1"}' in said


def _misbehave(kind: str) -> str:
    match kind:
        case "raise":
            raise ValueError("no")
        case "exit":
            os._exit(3)
        case "eat":
            return str(len(bytearray(1 << 40)))
        case "hang":
            time.sleep(600)
    return kind


@pytest.mark.parametrize("num_workers", [1, 2])
def test_work_that_misbehaves_costs_its_own_answer(num_workers: int):
    kinds = ["raise", "exit", "eat", "hang", "a", "b"]
    workers = Workers(_misbehave, num_workers=num_workers, limit_s=3.0, more_bytes=1 << 30)

    answers = dict(workers.map(kinds))

    told = [type(answers[number]) for number in range(len(kinds))]
    assert told == [Crash, Crash, Crash, Overrun, str, str]
