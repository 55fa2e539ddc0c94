import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.messages import SamplingParams, StopParams, Submit
from antiphon_engine.api.process import EngineStart
from antiphon_engine.engine_process import loop_settings, make_parts
from antiphon_engine.loop import EngineLoop
from antiphon_engine.offline_bench.driver import OfflineLink
from antiphon_engine.run_ahead import RECENT_STEPS, RunAhead
from support.loop_harness import LoopHarness, request, running_loop
from support.scripted_engine import Script, ScriptedExecutor, load_scripted

MS = 1_000_000
CONFIG = EngineConfig(
    block_tokens=8,
    max_rows=4,
    max_step_tokens=16,
    kv_cache_tokens=256,
    max_requests=12,
    run_ahead=2,
)


def settled(*, host_ns: int, step_ns: int = 10 * MS, num_steps: int = 1) -> RunAhead:
    """One behind steps of equal length, and a request that has just come."""
    run_ahead = RunAhead(num_steps, adapts=True)
    for _ in range(100):
        run_ahead.note_step(step_ns=step_ns, host_ns=host_ns)
    run_ahead.note_request()
    return run_ahead


def nobody() -> int:
    return 0


def one() -> int:
    return 1


@pytest.mark.parametrize("num_steps", [1, 2])
def test_nothing_is_launched_ahead_for_some_steps_behind_a_request(num_steps: int) -> None:
    run_ahead = settled(host_ns=MS // 4, num_steps=num_steps)
    told = []
    for _ in range(RECENT_STEPS + 2):
        told.append(run_ahead.num_steps(nobody))
        run_ahead.note_step(step_ns=10 * MS, host_ns=MS // 4)

    assert told == [0] * RECENT_STEPS + [num_steps] * 2


def test_host_is_hidden_where_it_takes_much_of_a_step() -> None:
    assert settled(host_ns=2 * MS).num_steps(nobody) == 1


def test_host_is_hidden_where_requests_wait_for_room() -> None:
    assert settled(host_ns=MS // 4).num_steps(one) == 1


def test_host_is_hidden_until_steps_are_known() -> None:
    run_ahead = RunAhead(1, adapts=True)
    run_ahead.note_request()

    assert run_ahead.num_steps(nobody) == 1


def test_one_short_step_among_long_ones_changes_nothing() -> None:
    run_ahead = settled(host_ns=MS // 4)
    run_ahead.note_step(step_ns=2 * MS, host_ns=MS // 4)

    assert run_ahead.num_steps(nobody) == 0


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_number_that_was_asked_for_is_kept(num_steps: int) -> None:
    run_ahead = RunAhead(num_steps, adapts=False)
    run_ahead.note_step(step_ns=10 * MS, host_ns=1)
    run_ahead.note_request()

    assert run_ahead.num_steps(nobody) == num_steps


@pytest.mark.parametrize(
    ("config", "num_steps"),
    [
        (EngineConfig(device="cuda"), 0),
        (EngineConfig(device="cuda", run_ahead=1), 1),
        (EngineConfig(device="cpu"), 0),
    ],
    ids=["cuda", "cuda, one ahead", "cpu"],
)
def test_settings_say_whether_it_adapts(config: EngineConfig, num_steps: int) -> None:
    parts = make_parts(
        EngineStart(config=config, checkpoint="scripted"), load_scripted(Script(), config)
    )
    parts.run_ahead.note_step(step_ns=10 * MS, host_ns=1)
    parts.run_ahead.note_request()

    assert parts.run_ahead.num_steps(nobody) == num_steps
    parts.close()


class Told(RunAhead):
    """Allows what it is told to, and keeps what it was told."""

    def __init__(self, depth: Callable[[], int]) -> None:
        super().__init__(2, adapts=True)
        self.num_requests = 0
        self._depth = depth

    def note_request(self) -> None:
        self.num_requests += 1

    def num_steps(self, num_waiting: Callable[[], int]) -> int:
        return self._depth()


def steps_until_first_token(harness: LoopHarness) -> int:
    """How many steps end until one brings a token to a request that comes behind a step's end."""
    harness.submit(1, request(1, 3, stop=StopParams(max_output_tokens=40)))
    while len(harness.heard.tokens[1, 0]) < 5:
        harness.step()
    harness.submit(2, request(2, 4, stop=StopParams(max_output_tokens=4)))
    num_before = len(harness.heard.steps)
    while not harness.heard.tokens[2, 0]:
        harness.step()
    return len(harness.heard.steps) - num_before


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_request_waits_for_the_steps_that_are_under_way(depth: int) -> None:
    run_ahead = Told(lambda: depth)
    with running_loop(Script(), CONFIG, run_ahead=run_ahead) as harness:
        assert steps_until_first_token(harness) == depth + 1
        assert run_ahead.num_requests == 2


def test_steps_that_were_ahead_are_taken_in_at_once() -> None:
    depths = [2]
    with running_loop(Script(), CONFIG, run_ahead=Told(lambda: depths[-1])) as harness:
        harness.submit(1, request(1, 3, stop=StopParams(max_output_tokens=40)))
        while len(harness.heard.steps) < 5:
            harness.step()
        depths.append(0)
        harness.step()

        assert len(harness.heard.steps) == 8


class LaunchingExecutor(ScriptedExecutor):
    """Launches for 30 ms, for 25 of which the step already runs; it ends 50 ms later."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(Script(), config)
        self.now_ns = 0

    def execute(self, set_index: int) -> Tensor:
        self.now_ns += 30 * MS
        return super().execute(set_index)

    def overlapped_ns(self, set_index: int) -> int:
        return 25 * MS

    def wait(self, set_index: int) -> None:
        self.now_ns += 50 * MS
        super().wait(set_index)


class Counted(RunAhead):
    """Keeps what steps took of the host."""

    def __init__(self) -> None:
        super().__init__(0, adapts=False)
        self.hosts_ns: list[int] = []

    def note_step(self, *, step_ns: int, host_ns: int) -> None:
        self.hosts_ns.append(host_ns)


def test_host_counts_for_what_the_device_stands_still_for_alone() -> None:
    executor, run_ahead, link = LaunchingExecutor(CONFIG), Counted(), OfflineLink()
    model = replace(load_scripted(Script(), CONFIG), executor=executor)
    parts = make_parts(EngineStart(config=CONFIG, checkpoint="scripted"), model)
    parts = replace(parts, run_ahead=run_ahead)
    loop = EngineLoop(parts, link, loop_settings(CONFIG), clock_ns=lambda: executor.now_ns)
    stop = StopParams(max_output_tokens=3)
    link.put(Submit(request_id=1, request=request(1, 3, stop=stop)))
    while loop.busy or not run_ahead.hosts_ns:
        loop.run_once()
    parts.close()

    assert run_ahead.hosts_ns == [5 * MS] * 3


@pytest.mark.parametrize("seed", range(8))
def test_outputs_are_the_same_however_the_number_changes(seed: int) -> None:
    prompts = {i: list(range(1, 2 + 3 * i)) for i in range(1, 9)}

    def said(run_ahead: RunAhead) -> dict[tuple[int, int], list[int]]:
        with running_loop(Script(), CONFIG, run_ahead=run_ahead) as harness:
            drawn = random.Random(seed)
            for i, prompt in prompts.items():
                sampling = SamplingParams(seed=i, temperature=5.0)
                harness.submit(
                    i, request(*prompt, sampling=sampling, stop=StopParams(max_output_tokens=9 + i))
                )
                for _ in range(drawn.randrange(4)):
                    harness.step()
            harness.run()
            stats = harness.stats()
            assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0)
            return dict(harness.heard.tokens)

    changes = random.Random(100 + seed)
    assert said(Told(lambda: changes.randrange(3))) == said(RunAhead(0, adapts=False))
