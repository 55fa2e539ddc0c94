"""The alert rules, as Prometheus evaluates them: each fires where it should, and not where not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from support.promtool import promtool

RECIPE = Path(__file__).parents[3] / "deploy" / "otel"
A, MODEL = 'instance="a"', 'instance="a", model="tiny"'
DAY_S = 86400

Rules = Mapping[str, dict[str, object]]


@dataclass(frozen=True, slots=True)
class Case:
    """What is read once a minute, in promtool's notation, and what is told at one minute."""

    alert: str
    at_minute: int
    series: Mapping[str, str]
    summary: str = ""
    """Empty: the alert is quiet."""
    labels: Mapping[str, str] = field(default_factory=lambda: {"instance": "a"})


def fires(
    alert: str, at_minute: int, summary: str, series: Mapping[str, str], **labels: str
) -> Case:
    told = {"instance": "a", **labels}
    return Case(alert, at_minute, series, summary, {key: told[key] for key in told if told[key]})


def quiet(alert: str, at_minute: int, series: Mapping[str, str]) -> Case:
    return Case(alert, at_minute, series)


def failures(reason: str, each_minute: int) -> Mapping[str, str]:
    return {
        f'antiphon_request_failures_total{{{A}, reason="{reason}"}}': f"0+{each_minute}x30",
        f'antiphon_requests_total{{{A}, outcome="completed"}}': "0+100x30",
    }


def histogram(metric: str, labels: str, buckets: Mapping[str, int]) -> Mapping[str, str]:
    """So many observations a minute up to each bound, all told."""
    return {
        f'{metric}_bucket{{{labels}, le="{bound}"}}': f"0+{num}x40"
        for bound, num in buckets.items()
    }


def first_tokens(buckets: Mapping[str, int]) -> Mapping[str, str]:
    metric = "gen_ai_server_time_to_first_token_seconds"
    return histogram(metric, f'{A}, gen_ai_request_model="tiny"', buckets)


def writes(buckets: Mapping[str, int]) -> Mapping[str, str]:
    metric = "antiphon_store_write_duration_seconds"
    return histogram(metric, f'{A}, write="accept"', buckets)


def lag(buckets: Mapping[str, int]) -> Mapping[str, str]:
    return histogram("antiphon_event_loop_lag_seconds", A, buckets)


UP = f'up{{job="antiphon", {A}}}'
SERVING = f"antiphon_serving{{{A}}}"
ENGINE_UP = f"antiphon_engine_up{{{MODEL}}}"
RESTARTS = f"antiphon_engine_restarts_total{{{MODEL}}}"
VIOLATIONS = f"antiphon_constraint_violations_total{{{MODEL}}}"
WAITING = f"antiphon_engine_requests_waiting{{{MODEL}}}"
KV_USE = f"antiphon_kv_cache_utilization_ratio{{{MODEL}}}"
PAUSES = f"antiphon_engine_preemptions_total{{{MODEL}}}"
WRITABLE = f"antiphon_store_writable{{{A}}}"
EXPIRY = f"antiphon_tls_certificate_expiry_seconds{{{A}}}"
DROPPED = f'antiphon_telemetry_spans_dropped_total{{{A}, cause="not_taken"}}'
FAILED = f'antiphon_telemetry_failed_exports_total{{{A}, signal="traces"}}'
NO_ROOM = f'antiphon_log_lines_dropped_total{{{A}, cause="no_room"}}'
REPEATED = f'antiphon_log_lines_dropped_total{{{A}, cause="repeated"}}'

CASES = [
    fires("AntiphonDown", 3, "a does not answer Prometheus", {UP: "1 0x5"}, job="antiphon"),
    quiet("AntiphonDown", 3, {UP: "1 0 1x5"}),
    fires("AntiphonAbsent", 6, "no server tells anything of itself", {UP: "1x9"}, instance=""),
    quiet("AntiphonAbsent", 6, {SERVING: "0x9"}),
    fires("AntiphonNotServing", 6, "a refuses requests", {SERVING: "0x9"}),
    quiet("AntiphonNotServing", 6, {SERVING: "0x4 1x9"}),
    fires(
        "AntiphonEngineDown",
        3,
        "the engine of tiny at a takes no requests",
        {ENGINE_UP: "1 0x5"},
        model="tiny",
    ),
    quiet("AntiphonEngineDown", 3, {ENGINE_UP: "1 0x1 1x5"}),
    fires(
        "AntiphonEngineRestarts",
        40,
        "the engine of tiny at a died 3 times in half an hour",
        {RESTARTS: "0x30 1 2 3x30"},
        model="tiny",
    ),
    quiet("AntiphonEngineRestarts", 40, {RESTARTS: "0x30 1 2x30"}),
    quiet("AntiphonEngineRestarts", 70, {RESTARTS: "0x30 1 2 3x60"}),
    fires(
        "AntiphonServerFaults",
        15,
        "more than 1 % of the requests at a fail by the server's fault",
        failures("INTERNAL", 2),
    ),
    quiet("AntiphonServerFaults", 15, failures("INVALID_FIELD", 50)),
    quiet("AntiphonServerFaults", 15, failures("ENGINE_DOWN", 1)),
    fires(
        "AntiphonConstraintViolated",
        8,
        "tiny at a made outputs that its grammar forbids",
        {VIOLATIONS: "0x5 1x20"},
        model="tiny",
    ),
    quiet("AntiphonConstraintViolated", 8, {VIOLATIONS: "1x20"}),
    fires(
        "AntiphonQueueGrowing",
        20,
        "11 or more outputs wait for tiny at a, and ever more",
        {WAITING: "1+1x30"},
        model="tiny",
    ),
    quiet("AntiphonQueueGrowing", 20, {WAITING: "9x30"}),
    quiet("AntiphonQueueGrowing", 20, {WAITING: "0 5 9 0 9 15 0 20 30 0 40 50 0 60 70 0 80 90 0"}),
    fires(
        "AntiphonOverloaded",
        15,
        "a refuses 0.2 requests a second for want of room",
        failures("OVERLOADED", 12),
    ),
    quiet("AntiphonOverloaded", 15, failures("OVERLOADED", 3)),
    fires(
        "AntiphonTimeToFirstTokenHigh",
        30,
        "one in a hundred waits more than 9.9 s for tiny at a",
        first_tokens({"5.0": 1, "10.0": 10, "+Inf": 10}),
        gen_ai_request_model="tiny",
    ),
    quiet("AntiphonTimeToFirstTokenHigh", 30, first_tokens({"5.0": 10, "10.0": 10, "+Inf": 10})),
    fires(
        "AntiphonKvCacheFull",
        30,
        "the KV cache of tiny at a is full, and requests are paused",
        {KV_USE: "0.99x40", PAUSES: "0+1x40"},
        model="tiny",
    ),
    quiet("AntiphonKvCacheFull", 30, {KV_USE: "0.99x40", PAUSES: "5x40"}),
    quiet("AntiphonKvCacheFull", 30, {KV_USE: "0.5x40", PAUSES: "0+1x40"}),
    fires("AntiphonStoreNotWritable", 3, "a can't write its sessions", {WRITABLE: "1 0x5"}),
    quiet("AntiphonStoreNotWritable", 3, {WRITABLE: "1 0 1x5"}),
    fires(
        "AntiphonStoreSlow",
        30,
        "one in a hundred writes of a takes more than 0.50 s",
        writes({"0.25": 1, "0.5": 100, "+Inf": 100}),
    ),
    quiet("AntiphonStoreSlow", 30, writes({"0.1": 99, "0.25": 100, "+Inf": 100})),
    fires(
        "AntiphonEventLoopLag",
        15,
        "the event loop of a runs up to 0.99 s late",
        lag({"0.5": 0, "1.0": 100, "+Inf": 100}),
    ),
    quiet("AntiphonEventLoopLag", 15, lag({"0.1": 99, "0.25": 100, "+Inf": 100})),
    fires(
        "AntiphonCertificateExpires",
        60,
        "the certificate of a ends in 2d 23h 0m 0s",
        {EXPIRY: f"{3 * DAY_S}x70"},
    ),
    quiet("AntiphonCertificateExpires", 60, {EXPIRY: f"{8 * DAY_S}x70"}),
    fires(
        "AntiphonSpansDropped",
        30,
        "a lost 15 spans in 15 minutes (not_taken)",
        {DROPPED: "0+1x40"},
        cause="not_taken",
    ),
    quiet("AntiphonSpansDropped", 30, {DROPPED: "0 7x40"}),
    fires(
        "AntiphonExportsFail",
        40,
        "the collector does not take the traces of a",
        {FAILED: "0+1x40"},
        signal="traces",
    ),
    quiet("AntiphonExportsFail", 40, {FAILED: "0x20 1 2x40"}),
    fires(
        "AntiphonLogLinesDropped",
        8,
        "a lost 3 lines of its log",
        {NO_ROOM: "0x5 3x20"},
        cause="no_room",
    ),
    quiet("AntiphonLogLinesDropped", 8, {REPEATED: "0+9x20"}),
]


@pytest.fixture(scope="module")
def rules() -> Rules:
    """By name."""
    groups = yaml.safe_load((RECIPE / "alerts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_prometheus_takes_its_configuration_and_the_rules():
    said = promtool("check", "config", "--lint-fatal", RECIPE / "prometheus.yml")

    assert "1 rule files found" in said


def test_every_alert_has_a_case_where_it_fires_and_one_where_it_is_quiet(rules: Rules):
    assert {case.alert for case in CASES if case.summary} == set(rules)
    assert {case.alert for case in CASES if not case.summary} == set(rules)


def test_alerts_fire_where_they_should_and_nowhere_else(rules: Rules, tmp_path: Path):
    tests = {
        "rule_files": [str(RECIPE / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [_promtool_case(case, rules[case.alert]) for case in CASES],
    }
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(tests))

    promtool("test", "rules", tmp_path / "cases.yml")


def _promtool_case(case: Case, rule: Mapping[str, dict[str, str]]) -> Mapping[str, object]:
    told = {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }
    return {
        "name": f"{case.alert} at {case.at_minute}",
        "interval": "1m",
        "input_series": [
            {"series": series, "values": values} for series, values in case.series.items()
        ],
        "alert_rule_test": [
            {
                "eval_time": f"{case.at_minute}m",
                "alertname": case.alert,
                "exp_alerts": [told] if case.summary else [],
            }
        ],
    }
