"""The checker process behind its link, with work that is told what to do."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.grammar import GrammarBackend
from antiphon_server.constraints.check_messages import CheckerStart, WorkerLimits
from antiphon_server.constraints.checker import CheckerLimits, ConstraintChecker
from antiphon_server.constraints.checker_link import CheckerLink
from antiphon_server.constraints.request import CheckedConstraint, ConstraintKind, ConstraintRequest
from support.fake_checker import (
    fake_checker_command,
    fork_fake_checker,
    grammar_of,
    noted_jobs,
    noted_loads,
)

PATH = "config.constraint"
LIMITS = WorkerLimits(cpu_s=0.3, memory_bytes=256 << 20)


def regex(text: str) -> ConstraintRequest:
    return ConstraintRequest(kind=ConstraintKind.REGEX, text=text)


class Bench:
    """A checker over a fake process, and what that process did."""

    def __init__(self, notes: Path, link: CheckerLink, checker: ConstraintChecker) -> None:
        self.notes = notes
        self.link = link
        self.checker = checker

    async def check(self, text: str) -> CheckedConstraint:
        return await self.checker.check(regex(text), path=PATH)

    async def failure(self, text: str) -> AntiphonError:
        with pytest.raises(AntiphonError) as caught:
            await self.check(text)
        return caught.value

    async def begun(self, text: str) -> None:
        """Waits until a worker has taken a constraint."""
        async with asyncio.timeout(60):
            while text not in self.texts:  # noqa: ASYNC110 - another process tells by a file
                await asyncio.sleep(0.01)

    @property
    def texts(self) -> list[str]:
        return [text for _, text in noted_jobs(self.notes)]


@asynccontextmanager
async def checking(
    directory: Path,
    *,
    num_workers: int = 2,
    max_pending: int = 66,
    cache_bytes: int = 1 << 20,
    command: Callable[[Path], list[str]] = fork_fake_checker,
) -> AsyncIterator[Bench]:
    notes = directory / "notes"
    start = CheckerStart(
        checkpoint="", vocabulary_size=1, num_workers=num_workers, worker_limits=LIMITS
    )
    link = CheckerLink(lambda: start, command=command(notes))
    limits = CheckerLimits(max_pending=max_pending, cache_bytes=cache_bytes, worker=LIMITS)
    checker = ConstraintChecker({GrammarBackend.LLGUIDANCE: link}, limits)
    try:
        yield Bench(notes, link, checker)
    finally:
        await checker.close()


async def test_checkers_load_one_behind_the_other_and_give_way(tmp_path: Path) -> None:
    notes, before = tmp_path / "notes", os.getpriority(os.PRIO_PROCESS, 0)

    def start(backend: GrammarBackend) -> CheckerStart:
        return CheckerStart(checkpoint="", vocabulary_size=1, backend=backend)

    links = {
        name: CheckerLink(partial(start, name), command=fake_checker_command(notes))
        for name in GrammarBackend
    }
    checker = ConstraintChecker(links, CheckerLimits())

    checker.start()
    checker.start()
    async with asyncio.timeout(60):
        while links[GrammarBackend.XGRAMMAR].process_id is None:  # noqa: ASYNC110 - as others do
            await asyncio.sleep(0.01)
        await links[GrammarBackend.XGRAMMAR].load()

    process_ids = [link.process_id or 0 for link in links.values()]
    niceness = [os.getpriority(os.PRIO_PROCESS, process_id) for process_id in process_ids]
    await checker.close()
    assert noted_loads(notes) == [("llguidance", before), ("xgrammar", max(before, 5))]
    assert niceness == [max(before, 5)] * 2


async def test_a_checker_that_somebody_waits_for_gives_way_once_it_has_loaded(
    tmp_path: Path,
) -> None:
    notes, before = tmp_path / "notes", os.getpriority(os.PRIO_PROCESS, 0)
    start = CheckerStart(checkpoint="", vocabulary_size=1, backend=GrammarBackend.XGRAMMAR)
    link = CheckerLink(lambda: start, command=fake_checker_command(notes))
    checker = ConstraintChecker({GrammarBackend.XGRAMMAR: link}, CheckerLimits())
    grammar = ConstraintRequest(kind=ConstraintKind.EBNF, text="good")

    await checker.check(grammar, path=PATH)

    niceness = os.getpriority(os.PRIO_PROCESS, link.process_id or 0)
    await checker.close()
    assert noted_loads(notes) == [("xgrammar", before)]
    assert niceness == max(before, 5)


async def test_a_constraint_is_looked_into_once(tmp_path: Path) -> None:
    async with checking(tmp_path) as bench:
        first = await bench.check("good")
        again = await bench.check("good")

        assert first.grammar.text == grammar_of("good")
        assert (again, bench.texts) == (first, ["good"])


async def test_those_who_ask_for_the_same_at_a_time_share_one_check(tmp_path: Path) -> None:
    async with checking(tmp_path) as bench:
        found = await asyncio.gather(*(bench.check("sleep 0.1") for _ in range(64)))

        assert len(found) == 64
        assert bench.texts == ["sleep 0.1"]


async def test_one_who_leaves_does_not_take_the_check_from_the_others(tmp_path: Path) -> None:
    async with checking(tmp_path) as bench:
        leaving = asyncio.create_task(bench.check("sleep 0.1"))
        staying = asyncio.create_task(bench.check("sleep 0.1"))
        await asyncio.sleep(0)
        leaving.cancel()

        assert (await staying).grammar.text == grammar_of("sleep 0.1")
        assert bench.texts == ["sleep 0.1"]


async def test_a_refusal_names_the_field_and_the_place_and_is_remembered(tmp_path: Path) -> None:
    async with checking(tmp_path) as bench:
        error = await bench.failure("refuse position 3")
        await bench.failure("refuse position 3")

        assert error.reason is ErrorReason.UNSUPPORTED_CONSTRAINT
        (violation,) = error.violations
        assert violation.field == "config.constraint.regex"
        assert violation.description == "position 3: can't be enforced"
        assert bench.texts == ["refuse position 3"]


async def test_a_check_that_takes_too_long_is_ended_and_may_be_tried_again(tmp_path: Path) -> None:
    async with checking(tmp_path) as bench:
        error = await bench.failure("spin")
        await bench.failure("spin")

        assert error.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX
        assert error.metadata["limit_ms"] == "300"
        assert bench.texts == ["spin", "spin"]
        assert (await bench.check("good")).grammar.text == grammar_of("good")


async def test_a_check_that_hangs_without_working_is_ended_too(tmp_path: Path) -> None:
    async with checking(tmp_path) as bench:
        error = await bench.failure("sleep 100")

        assert error.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX


@pytest.mark.parametrize("word", ["grow", "crash", "fault"])
async def test_a_check_that_breaks_its_worker_fails_alone(tmp_path: Path, word: str) -> None:
    # A fork of the tests' is so large that its crash would take longer than a check may.
    async with checking(tmp_path, command=fake_checker_command) as bench:
        broken, other = await asyncio.gather(bench.failure(word), bench.check("sleep 0.1"))

        assert broken.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX
        assert broken.metadata["limit_bytes"] == str(LIMITS.memory_bytes)
        assert other.grammar.text == grammar_of("sleep 0.1")
        assert bench.texts.count(word) == 1


async def test_what_is_too_large_says_so(tmp_path: Path) -> None:
    async with checking(tmp_path) as bench:
        error = await bench.failure("large")

        assert error.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX
        assert error.metadata["n"] == "9"
        assert "has too many cases" in error.message


async def test_a_worker_that_was_killed_from_outside_gives_its_job_to_another(
    tmp_path: Path,
) -> None:
    async with checking(tmp_path) as bench:
        said = f"once {tmp_path / 'mark'}"
        found = await bench.check(said)

        assert found.grammar.text == grammar_of(said)
        assert len(bench.texts) == 2


async def test_a_process_that_was_killed_is_started_again_for_those_who_wait(
    tmp_path: Path,
) -> None:
    async with checking(tmp_path) as bench:
        await bench.check("good")
        waiting = asyncio.create_task(bench.check("sleep 0.2"))
        await bench.begun("sleep 0.2")
        first_id = bench.link.process_id
        assert first_id is not None
        os.kill(first_id, signal.SIGKILL)

        assert (await waiting).grammar.text == grammar_of("sleep 0.2")
        assert bench.link.process_id != first_id


async def test_workers_end_with_the_process_and_that_with_its_link(tmp_path: Path) -> None:
    async with checking(tmp_path) as bench:
        await bench.check("good")
        hanging = asyncio.create_task(bench.check("spin"))
        await bench.begun("spin")
        process_id = bench.link.process_id
        hanging.cancel()

    workers = {worker for worker, _ in noted_jobs(tmp_path / "notes")}
    for ended in (process_id, *workers):
        for _ in range(500):
            if not is_running(ended):
                break
            await asyncio.sleep(0.01)
        assert not is_running(ended)


def is_running(process_id: int | None) -> bool:
    status = Path(f"/proc/{process_id}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_beyond_the_bound_checks_are_refused_for_now_or_wait(tmp_path: Path) -> None:
    async with checking(tmp_path, num_workers=1, max_pending=2) as bench:
        running = [asyncio.create_task(bench.check(f"sleep 0.{n}")) for n in (1, 11)]
        await asyncio.sleep(0)

        error = await bench.failure("good")
        waited = await bench.checker.check(regex("other"), path=PATH, waits=True)

        assert error.reason is ErrorReason.OVERLOADED
        assert error.retry_delay_s
        assert waited.grammar.text == grammar_of("other")
        await asyncio.gather(*running)


async def test_finished_outputs_do_not_wait_for_constraints(tmp_path: Path) -> None:
    async with checking(tmp_path, num_workers=1) as bench:
        constraint = await bench.check("good")
        waiting = asyncio.create_task(bench.failure("spin"))
        await bench.begun("spin")

        await bench.checker.verify(constraint, "fine")

        assert not waiting.done()
        await waiting


async def test_an_output_that_is_not_as_it_had_to_be_is_counted_and_fails(tmp_path: Path) -> None:
    async with checking(tmp_path) as bench:
        constraint = await bench.check("good")

        with pytest.raises(AntiphonError) as caught:
            await bench.checker.verify(constraint, "bad is too short")

        assert caught.value.reason is ErrorReason.CONSTRAINT_VIOLATED
        assert "is too short" in caught.value.message
        assert bench.checker.num_violations == 1


async def test_an_output_that_nobody_can_tell_of_fails(tmp_path: Path) -> None:
    async with checking(tmp_path) as bench:
        constraint = await bench.check("good")

        with pytest.raises(AntiphonError) as caught:
            await bench.checker.verify(constraint, "spin")

        assert caught.value.reason is ErrorReason.INTERNAL
        assert bench.checker.num_violations == 0
