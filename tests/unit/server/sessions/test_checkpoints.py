"""When the progress of a turn is kept, and what of it can be gone on behind."""

import asyncio
from array import array
from dataclasses import dataclass, field, replace

import pytest
from antiphon.v1.types_pb2 import GenerationConfig

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.messages import FinishReason, SamplingParams, StopParams, TokenLogprobs
from antiphon_server.endurance import Attempts
from antiphon_server.generation_output import OutputRecord
from antiphon_server.sessions.checkpoints import (
    CheckpointPlace,
    Checkpoints,
    resumable_output,
)
from antiphon_server.sessions.limits import SessionLimits
from antiphon_server.sessions.records import Checkpoint, SessionKey, TurnTokens
from antiphon_server.sessions.shared_instants import SharedInstants
from antiphon_server.validation import ResolvedConfig

KEY = SessionKey("", "a")
PROMPT = TurnTokens(head_ids=array("i", [1]), head_digest=b"d")


@dataclass(slots=True)
class FakeStore:
    """Keeps checkpoints in a list, where it is not told to fail."""

    kept: list[Checkpoint] = field(default_factory=list)
    fails: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    was_used: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep_checkpoint(self, key: SessionKey, position: int, checkpoint: Checkpoint) -> bool:
        assert (key, position) == (KEY, 3)
        await self.gate.wait()
        if self.fails:
            raise AntiphonError(ErrorReason.STORE_UNAVAILABLE, "the disk is full")
        self.kept.append(checkpoint)
        self.was_used.set()
        return True

    @property
    def parts(self) -> list[tuple[int, list[int]]]:
        return [(part.num_kept_before, list(part.tokens.output_ids)) for part in self.kept]


@dataclass(slots=True)
class FakeGeneration:
    outputs: list[OutputRecord]


@dataclass(slots=True)
class Bench:
    store: FakeStore
    record: OutputRecord
    attempts: Attempts
    checkpoints: Checkpoints

    async def say(self, *token_ids: int) -> None:
        self.record.token_ids.extend(token_ids)
        self.checkpoints.note_progress()
        await turns()


async def turns() -> None:
    """Lets everything that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def bench_of(
    *, tokens: int = 4, interval_s: float = 3600.0, instants: SharedInstants | None = None
) -> Bench:
    store, record, attempts = FakeStore(), OutputRecord(index=0), Attempts(most=3)
    store.gate.set()
    attempts.begin(0)
    place = CheckpointPlace(store=store, key=KEY, position=3, tokens=PROMPT)
    limits = SessionLimits(checkpoint_tokens=tokens, checkpoint_interval_s=interval_s)
    checkpoints = Checkpoints(
        place,
        FakeGeneration([record]),
        attempts=attempts,
        limits=limits,
        instants=instants or SharedInstants(),
    )
    return Bench(store, record, attempts, checkpoints)


async def test_progress_is_kept_once_there_is_enough_of_it() -> None:
    bench = bench_of()
    await bench.say(1, 2, 3)
    assert not bench.store.kept
    await bench.say(4, 5)
    await bench.say(6)
    await bench.say(7, 8, 9)

    assert bench.store.parts == [(0, [1, 2, 3, 4, 5]), (5, [6, 7, 8, 9])]
    assert {part.tokens.head_digest for part in bench.store.kept} == {b"d"}
    bench.checkpoints.close()


async def test_few_tokens_are_kept_when_the_interval_is_over() -> None:
    bench = bench_of(interval_s=0.005)
    await bench.say(1)
    await asyncio.sleep(0.03)
    await turns()

    assert bench.store.parts == [(0, [1])]
    bench.checkpoints.close()


async def test_turns_that_began_apart_are_kept_in_one_round_of_the_loop() -> None:
    instants = SharedInstants()
    early, late = (bench_of(interval_s=0.2, instants=instants) for _ in range(2))
    await early.say(1)
    await asyncio.sleep(0.002)
    await late.say(1)
    async with asyncio.timeout(60):
        await early.store.was_used.wait()
    await turns()

    assert early.store.parts == late.store.parts == [(0, [1])]
    early.checkpoints.close()
    late.checkpoints.close()


async def test_one_write_at_a_time_and_the_next_takes_all_that_came() -> None:
    bench = bench_of(tokens=1)
    bench.store.gate.clear()
    for token_id in range(5):
        await bench.say(token_id)
    assert not bench.store.kept
    bench.store.gate.set()
    await turns()

    assert bench.store.parts == [(0, [0]), (1, [1, 2, 3, 4])]


async def test_all_there_is_can_be_waited_for() -> None:
    bench = bench_of(tokens=2)
    bench.store.gate.clear()
    await bench.say(1, 2)
    bench.record.token_ids.append(3)
    waiting = asyncio.create_task(bench.checkpoints.keep_all())
    await turns()
    assert not waiting.done()
    bench.store.gate.set()
    await waiting

    assert bench.store.parts == [(0, [1, 2]), (2, [3])]
    await bench.checkpoints.keep_all()
    assert len(bench.store.kept) == 2
    bench.record.token_ids.append(4)
    bench.store.fails = True
    with pytest.raises(AntiphonError):
        await bench.checkpoints.keep_all()


async def test_what_could_not_be_kept_goes_into_the_next_write() -> None:
    bench = bench_of(tokens=2)
    bench.store.fails = True
    await bench.say(1, 2)
    bench.store.fails = False
    await bench.say(3)

    assert bench.store.parts == [(0, [1, 2, 3])]


async def test_nothing_is_kept_once_it_is_closed() -> None:
    bench = bench_of(tokens=1, interval_s=0.001)
    bench.checkpoints.close()
    await bench.say(1, 2)
    await asyncio.sleep(0.01)

    assert not bench.store.kept


async def test_last_write_holds_all_and_counts_no_attempt() -> None:
    bench = bench_of()
    await bench.say(1)
    await bench.checkpoints.close_with_all()

    assert bench.store.parts == [(0, [1])]
    assert [part.num_attempts for part in bench.store.kept] == [0]


async def test_what_an_earlier_server_kept_is_not_written_again() -> None:
    bench = bench_of(tokens=2)
    bench.checkpoints.skip_kept(3)
    await bench.say(1, 2, 3)
    assert not bench.store.kept
    await bench.say(4, 5)

    assert bench.store.parts == [(3, [4, 5])]


def earlier(*output_ids: int, num_logprobs: int = 0) -> Checkpoint:
    entry = TokenLogprobs(request_id=1, output_index=0, chosen=-1.0, top_ids=b"", top_logprobs=b"")
    return Checkpoint(
        num_attempts=1,
        tokens=TurnTokens(output_ids=array("i", output_ids)),
        logprobs=[entry] * num_logprobs,
    )


CONFIG = ResolvedConfig(
    sampling=SamplingParams(seed=1),
    stop=StopParams(max_output_tokens=5, end_ids=(2,), stop_ids=(3,)),
    fills_context=False,
    effective=GenerationConfig(),
)


@pytest.mark.parametrize(
    ("kept", "ended"),
    [
        ([], None),
        ([7, 8], None),
        ([7, 2], FinishReason.END_ID),
        ([7, 8, 3], FinishReason.STOP_ID),
        ([2], FinishReason.END_ID),
        ([7, 8, 9, 7, 8], FinishReason.MAX_OUTPUT_TOKENS),
        ([7, 8, 9, 7, 2], FinishReason.END_ID),
    ],
)
def test_output_that_was_kept_whole_is_resumed_with_its_end(
    kept: list[int], ended: FinishReason | None
) -> None:
    resumed = resumable_output(earlier(*kept), CONFIG)

    assert (list(resumed.token_ids), resumed.ended) == (kept, ended)


def test_output_is_resumed_as_far_as_its_reports_were_kept() -> None:
    reporting = replace(CONFIG, top_logprobs=0)

    resumed = resumable_output(earlier(7, 8, 9, num_logprobs=2), reporting)

    assert (list(resumed.token_ids), len(resumed.logprobs)) == ([7, 8], 2)
    assert not resumable_output(None, CONFIG).token_ids
