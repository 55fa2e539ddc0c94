"""The standard variables, below the project's own settings."""

from collections.abc import Mapping

import pytest

from antiphon_engine.api.errors import StartupError
from antiphon_server.config import TelemetryConfig
from antiphon_server.settings import load_config
from antiphon_server.telemetry.providers import head_sampling, new_telemetry
from antiphon_server.trace_context import TraceContext

HOME = {"HOME": "/tmp"}
SAMPLED, UNSAMPLED = (
    TraceContext(traceparent=f"00-{5:032x}-{6:016x}-{flags}") for flags in ("01", "00")
)
LOW, HIGH = "0" * 31 + "1", "f" * 32
"""Trace ids that every ratio above 0 keeps, and that every one below 1 leaves out."""


def loaded(environ: Mapping[str, str], *sets: str) -> TelemetryConfig:
    return load_config(sets, None, {**HOME, **environ}).telemetry


@pytest.mark.parametrize(
    ("variable", "value", "name", "expected"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317", "otlp_endpoint", "http://c:4317"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317", "otlp_endpoint", "https://c:4317"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1", "traces_endpoint", "http://t:1"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://m:1", "metrics_endpoint", "http://m:1"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1500", "metrics_interval_s", 1.5),
        ("OTEL_METRICS_EXPORTER", "none", "metrics", False),
        ("OTEL_METRICS_EXPORTER", "otlp,prometheus", "metrics", True),
        ("OTEL_METRICS_EXPORTER", "prometheus", "prometheus_listen", "localhost:9464"),
        ("OTEL_TRACES_EXPORTER", "none", "traces", False),
        ("OTEL_SERVICE_NAME", "mine", "service_name", "mine"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=b,service.name=my%20own", "service_name", "my own"),
        ("OTEL_TRACES_SAMPLER", "always_off", "sampler", "always_off"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.25", "sample_ratio", 0.25),
        ("OTEL_SDK_DISABLED", "true", "enabled", False),
        ("OTEL_SDK_DISABLED", "", "enabled", True),
    ],
)
def test_a_standard_variable_makes_a_setting(variable, value, name, expected):
    assert getattr(loaded({variable: value}), name) == expected


def test_an_endpoint_without_a_scheme_is_plain_where_that_was_asked_for():
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4317", "OTEL_EXPORTER_OTLP_INSECURE": "true"}

    assert loaded(environ).otlp_endpoint == "http://c:4317"


def test_the_projects_own_settings_win():
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317",
        "OTEL_SERVICE_NAME": "theirs",
        "ANTIPHON_TELEMETRY__SERVICE_NAME": "ours",
    }

    config = loaded(environ, "telemetry.otlp_endpoint=http://d:4317")

    assert (config.otlp_endpoint, config.service_name) == ("http://d:4317", "ours")


@pytest.mark.parametrize(
    ("environ", "sets", "told"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, (), "OTEL_EXPORTER_OTLP_PROTOCOL"),
        ({"OTEL_TRACES_EXPORTER": "console"}, (), "OTEL_TRACES_EXPORTER"),
        ({"OTEL_METRICS_EXPORTER": "console"}, (), "OTEL_METRICS_EXPORTER"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "1e3"}, (), "OTEL_METRIC_EXPORT_INTERVAL"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "1"}, (), "OTEL_METRIC_EXPORT_INTERVAL"),
        ({"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}, (), "TEMPORALITY"),
        ({"OTEL_TRACES_SAMPLER": "jaeger_remote"}, (), "OTEL_TRACES_SAMPLER"),
        ({"OTEL_TRACES_SAMPLER_ARG": "2"}, (), "OTEL_TRACES_SAMPLER_ARG"),
        ({}, ("telemetry.otlp_endpoint=c:4317",), "http:// or https://"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_source(environ, sets, told):
    with pytest.raises(StartupError, match=told):
        loaded(environ, *sets)


def test_nothing_is_told_where_no_collector_is_named_or_all_is_switched_off():
    endpoint = "http://127.0.0.1:1"
    all_off = TelemetryConfig(otlp_endpoint=endpoint, enabled=False)
    traces_off = TelemetryConfig(otlp_endpoint=endpoint, traces=False)

    for config in (TelemetryConfig(), all_off, traces_off):
        telemetry = new_telemetry(config)
        assert (list(telemetry.sinks), telemetry.places) == ([], None)


@pytest.mark.parametrize(
    ("sampler", "root_low", "root_high", "sampled", "unsampled"),
    [
        ("always_on", True, True, True, True),
        ("always_off", False, False, False, False),
        ("traceidratio", True, False, True, True),
        ("parentbased_always_on", True, True, True, False),
        ("parentbased_always_off", False, False, True, False),
        ("parentbased_traceidratio", True, False, True, False),
    ],
)
def test_samplers_decide_as_they_are_named(sampler, root_low, root_high, sampled, unsampled):
    sampling = head_sampling(TelemetryConfig(sampler=sampler, sample_ratio=0.5))

    none = TraceContext()
    assert sampling.keeps(none, LOW) == root_low
    assert sampling.keeps(none, HIGH) == root_high
    assert sampling.keeps(SAMPLED, SAMPLED.trace_id) == sampled
    assert sampling.keeps(UNSAMPLED, UNSAMPLED.trace_id) == unsampled
