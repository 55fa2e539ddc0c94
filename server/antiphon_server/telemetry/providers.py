"""Puts telemetry together from the settings."""

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Final

from antiphon_engine.api.errors import StartupError
from antiphon_server.config import TelemetryConfig
from antiphon_server.telemetry import conventions
from antiphon_server.telemetry.exporter_log import LineAMinute, limit_exporter_logs
from antiphon_server.telemetry.figures import TelemetryFigures
from antiphon_server.telemetry.request_log import RequestLog
from antiphon_server.telemetry.request_recorder import ContentCapture
from antiphon_server.telemetry.sampling import HeadSampling, SpanPlaces, TailSampling
from antiphon_server.telemetry.telemetry import RecordSink, Telemetry

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from antiphon_server.telemetry.metric_values import Family
    from antiphon_server.telemetry.otlp_metrics import MetricExport

_DECIDED: Final = (conventions.SERVICE_NAME,)
"""What settings say, where OTEL_SERVICE_NAME already is."""


def new_telemetry(
    config: TelemetryConfig,
    *,
    instance_id: str = "",
    figures: TelemetryFigures | None = None,
    log_requests: bool = False,
    more_sinks: Sequence[RecordSink] = (),
) -> Telemetry:
    """Returns what the settings ask for; nothing of OpenTelemetry is loaded where that is none.

    Args:
        config: The settings.
        instance_id: Tells this server from others of its name.
        figures: Where telemetry counts what becomes of it.
        log_requests: Whether each request and turn has a line in the log.
        more_sinks: Whom to tell beside those who trace.

    Raises:
        StartupError: a standard variable can't be used.
    """
    figures = figures or TelemetryFigures()
    sinks = [*more_sinks, *([RequestLog()] if log_requests else [])]
    places = None
    endpoint = config.traces_endpoint or config.otlp_endpoint
    if config.enabled and config.traces and endpoint:
        sinks.append(_new_span_export(config, endpoint, new_resource(config, instance_id), figures))
        places = SpanPlaces(head_sampling(config))
    return Telemetry(
        sinks=sinks,
        places=places,
        tail=TailSampling(slow_first_token_s=config.slow_first_token_s),
        capture=ContentCapture(is_on=config.capture_content, max_bytes=config.max_content_bytes),
        figures=figures,
        logs_requests=log_requests,
    )


def head_sampling(config: TelemetryConfig) -> HeadSampling:
    """Returns the decision at the start that the settings ask for."""
    ratio = {"always_on": 1.0, "always_off": 0.0}.get(
        config.sampler.removeprefix("parentbased_"), config.sample_ratio
    )
    return HeadSampling(follows_parent=config.sampler.startswith("parentbased_"), ratio=ratio)


def new_resource(config: TelemetryConfig, instance_id: str) -> "Resource":
    """Returns whose signals they are; what OTEL_RESOURCE_ATTRIBUTES says is added."""
    from opentelemetry.sdk.resources import Resource

    own = {
        conventions.SERVICE_NAME: config.service_name,
        conventions.SERVICE_VERSION: metadata.version("antiphon"),
        conventions.SERVICE_INSTANCE_ID: instance_id,
    }
    named = Resource.create()  # Reads the variable.
    return Resource(own).merge(
        Resource({key: value for key, value in named.attributes.items() if key not in _DECIDED})
    )


def _new_span_export(
    config: TelemetryConfig, endpoint: str, resource: "Resource", figures: TelemetryFigures
) -> RecordSink:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    from antiphon_server.telemetry.span_export import ExportBounds, SpanExport

    limit_exporter_logs(LineAMinute())
    try:
        exporter = OTLPSpanExporter(endpoint=endpoint)
    except (OSError, ValueError) as error:  # Its own variables: a time-out, a certificate.
        raise StartupError(f"traces can't be sent to {endpoint}: {error}") from error
    return SpanExport(
        exporter,
        resource,
        bounds=ExportBounds(max_waiting_records=config.max_waiting_records),
        figures=figures,
    )


def new_metric_export(
    config: TelemetryConfig,
    endpoint: str,
    *,
    instance_id: str,
    families: "Callable[[], Sequence[Family]]",
    figures: TelemetryFigures,
) -> "MetricExport":
    """Returns what exports metrics.

    Args:
        config: The settings.
        endpoint: Where to.
        instance_id: Tells this server from others of its name.
        families: Returns all metrics, on any thread but the event loop's.
        figures: Where telemetry counts what becomes of it.

    Raises:
        StartupError: what an OTEL_ variable says of the exporter can't be used.
    """
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    from antiphon_server.telemetry.otlp_metrics import MetricExport

    limit_exporter_logs(LineAMinute())
    try:
        exporter = OTLPMetricExporter(endpoint=endpoint)
    except (OSError, ValueError) as error:  # Its own variables: a time-out, a certificate.
        raise StartupError(f"metrics can't be sent to {endpoint}: {error}") from error
    return MetricExport(
        exporter,
        new_resource(config, instance_id),
        families=families,
        interval_s=config.metrics_interval_s,
        figures=figures,
    )
