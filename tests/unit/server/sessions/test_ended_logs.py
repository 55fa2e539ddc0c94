from antiphon.v1.session_pb2 import TurnAccepted, TurnCompleted, TurnEvent
from antiphon.v1.types_pb2 import Delta

from antiphon_server.sessions.ended_logs import EndedLogs
from antiphon_server.sessions.event_log import EventLog
from antiphon_server.sessions.records import SessionKey

A, B = SessionKey("", "a"), SessionKey("other", "a")


def ended_log(turn_id: str, text: str = "x") -> EventLog:
    log = EventLog(turn_id, 1)
    log.append(TurnEvent(accepted=TurnAccepted()))
    log.append(TurnEvent(delta=Delta(text=text)))
    log.append(TurnEvent(completed=TurnCompleted()))
    return log


def logs(max_bytes: int = 1 << 20) -> EndedLogs:
    return EndedLogs(max_bytes=max_bytes, grace_s=60.0, clock_ns=lambda: 1)


def test_a_log_is_found_under_its_own_session_and_turn_only() -> None:
    kept, log = logs(), ended_log("t1")
    kept.keep(A, log)

    assert kept.find(A, "t1") is log
    assert kept.find(B, "t1") is None
    assert kept.find(A, "t2") is None


def test_the_oldest_logs_go_once_all_together_are_too_large() -> None:
    kept = logs(max_bytes=10_000)
    for number in range(9):
        kept.keep(A, ended_log(f"t{number}", "x" * 1000))

    found = [number for number in range(9) if kept.find(A, f"t{number}")]

    assert found == list(range(9 - len(found), 9))
    assert 2 <= len(found) <= 9
    assert kept.size_bytes <= 10_000


def test_a_log_larger_than_the_bound_is_not_kept() -> None:
    kept = logs(max_bytes=10_000)
    kept.keep(A, ended_log("t1", "x" * 20_000))

    assert kept.find(A, "t1") is None
    assert kept.size_bytes == 0


def test_a_session_that_is_gone_leaves_nothing_and_takes_nothing_of_others() -> None:
    kept = logs()
    for key in (A, B):
        for number in range(3):
            kept.keep(key, ended_log(f"t{number}"))
    size_bytes = kept.size_bytes

    kept.drop_session(A)
    kept.drop_session(A)

    assert [kept.find(A, f"t{number}") for number in range(3)] == [None] * 3
    assert all(kept.find(B, f"t{number}") for number in range(3))
    assert kept.size_bytes == size_bytes // 2


def test_a_log_that_takes_anothers_place_counts_alone() -> None:
    kept, later = logs(), ended_log("t1")
    kept.keep(A, ended_log("t1", "x" * 5000))
    kept.keep(A, later)

    assert kept.find(A, "t1") is later
    assert kept.size_bytes < 5000
