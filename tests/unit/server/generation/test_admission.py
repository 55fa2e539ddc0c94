"""Who may join the queue."""

import pytest

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import EngineState
from antiphon_server.admission import Admission
from support.fake_engine import FakeEngine


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns


def admission(engine: FakeEngine | None = None, *, most: int = 2) -> Admission:
    return Admission(engine=engine or FakeEngine(), max_queued_requests=most, clock_ns=Clock())


def refusal(gate: Admission, deadline_ns: int | None = None) -> AntiphonError:
    with pytest.raises(AntiphonError) as caught:
        gate.admit(deadline_ns=deadline_ns)
    return caught.value


def test_queue_is_bounded_and_says_when_to_come_again() -> None:
    gate = admission(most=2)
    gate.admit(deadline_ns=None)
    gate.admit(deadline_ns=None)

    error = refusal(gate)

    assert error.reason is ErrorReason.OVERLOADED
    assert error.metadata == {"waiting": "2", "limit": "2"}
    assert error.retry_delay_s is not None
    assert error.retry_delay_s > 0
    assert gate.num_waiting == 2


@pytest.mark.parametrize("way", ["start", "release"])
def test_place_in_the_queue_comes_free(way: str) -> None:
    gate = admission(most=1)
    ticket = gate.admit(deadline_ns=None)

    if way == "start":
        ticket.start(5)
    else:
        ticket.release()
    gate.admit(deadline_ns=None)

    assert gate.num_waiting == 1


def test_counts_come_back_to_zero_whatever_is_said_twice() -> None:
    gate = admission()
    tickets = [gate.admit(deadline_ns=None), gate.admit(deadline_ns=None)]

    tickets[0].start(1)
    tickets[0].start(1)
    running = gate.num_running
    for ticket in [*tickets, *tickets]:
        ticket.release()
        ticket.start(1)

    assert running == 1
    assert gate.num_waiting == gate.num_running == 0


def test_longer_waits_make_longer_delays_within_bounds() -> None:
    gate = admission(most=1)
    gate.admit(deadline_ns=None).start(20_000_000_000)
    gate.admit(deadline_ns=None)
    short = refusal(gate).retry_delay_s
    for _ in range(20):
        gate.note_end(had_started=False)
        gate.admit(deadline_ns=None).start(10**14)
        gate.admit(deadline_ns=None)

    assert short == pytest.approx(4.0)
    assert refusal(gate).retry_delay_s == 30.0


@pytest.mark.parametrize("deadline_ns", [0, 999, 1_000])
def test_deadline_that_has_passed_is_refused(deadline_ns: int) -> None:
    gate = admission()

    assert refusal(gate, deadline_ns).reason is ErrorReason.TIMEOUT
    assert gate.num_waiting == 0


def test_deadline_ahead_is_admitted() -> None:
    admission().admit(deadline_ns=1_001)


@pytest.mark.parametrize("state", [EngineState.STARTING, EngineState.STALLED, EngineState.DOWN])
def test_engine_that_is_not_ready_gets_nothing(state: EngineState) -> None:
    error = refusal(admission(FakeEngine(state=state)))

    assert error.reason is ErrorReason.ENGINE_DOWN
    assert error.retry_delay_s is not None
    assert state.value in error.message
