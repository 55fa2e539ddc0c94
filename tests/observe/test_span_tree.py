"""What the check of a trace finds wrong with it."""

from dataclasses import replace

import pytest

from observe.span_tree import Answer, Span, drawn, faults_of, measures_of

_TRACE = "a" * 32
_ANSWER = Answer(
    traceparent=f"00-{_TRACE}-{'2' * 16}-01", call="Service/Call", wait_s=1.0, idle_wait_s=0.02
)


def _span(name: str, number: int, parent: int, start_s: float, end_s: float) -> Span:
    return Span(
        name=name,
        trace_id=_TRACE,
        span_id=str(number) * 16,
        parent_id=str(parent) * 16 if parent else "",
        start_s=start_s,
        end_s=end_s,
        attributes={},
    )


_SPANS = {
    span.name: span
    for span in (
        _span("Service/Call", 1, 0, 0.0, 2.0),
        _span("chat tiny", 2, 1, 0.5, 1.5),
        _span("queue", 3, 2, 0.5, 0.6),
        _span("store.write", 7, 2, 0.51, 0.52),
        _span("prefill", 4, 2, 0.6, 0.9),
        _span("prefill.chunk", 5, 4, 0.6, 0.9),
        _span("decode", 6, 2, 0.9, 1.48),
    )
}


def test_nothing_is_wrong_with_a_whole_tree():
    assert faults_of(_ANSWER, list(_SPANS.values())) == []


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("chat tiny", {"span_id": "9" * 16}, "is not there"),
        ("chat tiny", {"parent_id": ""}, "is not below Service/Call"),
        ("queue", {"start_s": 0.4}, "queue is not within the time of chat tiny"),
        ("prefill.chunk", {"end_s": 1.0}, "prefill.chunk is not within the time of prefill"),
        ("prefill.chunk", {"parent_id": "2" * 16}, "prefill has no chunks"),
        ("decode", {"start_s": 0.95}, "decode does not begin where prefill ends"),
        ("decode", {"parent_id": "1" * 16}, "has the phases ['queue', 'prefill']"),
        ("decode", {"end_s": 1.42}, "the phases take 0.920 s; the front end 1.000 s"),
    ],
)
def test_what_is_wrong_is_told(name: str, change: dict[str, object], fault: str):
    spans = {**_SPANS, name: replace(_SPANS[name], **change)}

    faults = faults_of(_ANSWER, list(spans.values()))

    assert any(fault in each for each in faults), faults


@pytest.mark.parametrize(
    ("wait_s", "idle_wait_s", "is_wrong"),
    [(1.05, 0.02, False), (1.07, 0.02, True), (1.07, 0.04, False), (0.97, 0.02, True)],
)
def test_phases_are_what_the_client_waited_for_but_for_its_own_share(
    wait_s: float, idle_wait_s: float, is_wrong: bool
):
    answer = replace(_ANSWER, wait_s=wait_s, idle_wait_s=idle_wait_s)

    faults = faults_of(answer, list(_SPANS.values()))

    assert len(faults) == is_wrong
    assert all("the client waited" in fault for fault in faults)


def test_what_is_done_behind_the_last_token_are_no_part_of_any_phase():
    spans = {**_SPANS, "chat tiny": replace(_SPANS["chat tiny"], end_s=1.6)}
    write, look = (
        _span("store.write", 8, 2, 1.47, 1.53),
        _span("constraint.check", 9, 2, 1.53, 1.59),
    )
    answer = replace(_ANSWER, wait_s=1.1)

    assert len(faults_of(answer, list(spans.values()))) == 2
    assert faults_of(answer, [*spans.values(), write, look]) == []


def test_all_accounts_of_a_turn_are_told():
    told = str(measures_of(_ANSWER, list(_SPANS.values())))

    for account in (
        "980.0 ms by its phases",
        "1000.0 ms by the front",
        "1000.0 ms by the",
        "20.0 ms",
    ):
        assert account in told
    assert measures_of(_ANSWER, []) is None


def test_spans_of_other_traces_are_not_looked_at():
    spans = [replace(span, trace_id="b" * 32) for span in _SPANS.values()]

    assert len(faults_of(_ANSWER, spans)) == 1


def test_the_tree_is_drawn_by_time():
    lines = list(drawn(list(_SPANS.values())[::-1], _SPANS["Service/Call"]))

    assert [line.split("  ")[-2].strip() for line in lines] == list(_SPANS)
    assert lines[2].startswith("      queue  100.0 ms")


def test_what_phoenix_answers_is_read():
    row = {
        "name": "queue",
        "context": {"trace_id": _TRACE, "span_id": "3" * 16},
        "parent_id": None,
        "start_time": "2026-01-01T00:00:00.250000+00:00",
        "end_time": "2026-01-01T00:00:00.500000+00:00",
        "attributes": {"antiphon.turn": "t"},
    }

    span = Span.from_phoenix(row)

    assert (span.name, span.parent_id, span.duration_s) == ("queue", "", 0.25)
