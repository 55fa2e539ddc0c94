"""The standard OTEL_ variables as settings, below all others.

Headers, time-outs, certificates and resource attributes are read by the exporters themselves.
"""

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote

from antiphon_engine.api.errors import StartupError
from antiphon_server.config import TelemetryConfig

SAMPLERS: Final = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)
"""As OTEL_TRACES_SAMPLER takes them."""

_KEYS: Final[Mapping[str, str]] = {
    "OTEL_SERVICE_NAME": "telemetry.service_name",
    "OTEL_TRACES_SAMPLER": "telemetry.sampler",
    "OTEL_TRACES_SAMPLER_ARG": "telemetry.sample_ratio",
}
_ENDPOINTS: Final[Mapping[str, str]] = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "telemetry.otlp_endpoint",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "telemetry.traces_endpoint",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "telemetry.metrics_endpoint",
}
_PROTOCOLS: Final = (
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
)
_TEMPORALITY: Final = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
_METRICS_EXPORTERS: Final = ("otlp", "prometheus", "none")
_MAX_DIGITS: Final = 12
_SCHEMES: Final = ("http://", "https://")


def from_otel_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    """Yields source, key and value of each setting that a standard variable makes.

    An empty variable counts as none.

    Raises:
        StartupError: a variable asks for what this release can't do.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        yield "OTEL_SDK_DISABLED", "telemetry.enabled", False
    for variable in _PROTOCOLS:
        protocol = environ.get(variable, "")
        if protocol not in ("", "grpc"):
            raise StartupError(
                f"{variable} is {protocol!r:.100}; this release exports over grpc only: set that,"
                " with the collector's gRPC port, usually 4317"
            )
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    if exporter not in ("", "otlp", "none"):
        raise StartupError(f"OTEL_TRACES_EXPORTER is {exporter!r:.100}; set otlp or none")
    if exporter == "none":
        yield "OTEL_TRACES_EXPORTER", "telemetry.traces", False
    for variable, key in _ENDPOINTS.items():
        if endpoint := environ.get(variable, ""):
            is_plain = environ.get(variable.replace("ENDPOINT", "INSECURE"), "").lower() == "true"
            yield variable, key, _with_scheme(endpoint, is_plain=is_plain)
    yield from _metrics(environ)
    yield from _named_resource(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    for variable, key in _KEYS.items():
        if value := environ.get(variable, ""):
            yield variable, key, value


def _metrics(environ: Mapping[str, str]) -> Iterator[tuple[str, str, object]]:
    """Yields who gets metrics, and how often. Raises StartupError."""
    if (temporality := environ.get(_TEMPORALITY, "")).lower() not in ("", "cumulative"):
        raise StartupError(
            f"{_TEMPORALITY} is {temporality!r:.100}; this release counts from its start only:"
            " set cumulative"
        )
    if interval := environ.get("OTEL_METRIC_EXPORT_INTERVAL", ""):
        source = "OTEL_METRIC_EXPORT_INTERVAL"
        if not (interval.isascii() and interval.isdigit() and len(interval) <= _MAX_DIGITS):
            raise StartupError(f"{source} is {interval!r:.100}; write milliseconds, such as 60000")
        yield source, "telemetry.metrics_interval_s", int(interval) / 1000
    source = "OTEL_METRICS_EXPORTER"
    exporters = [name.strip() for name in environ.get(source, "").split(",") if name.strip()]
    for name in exporters:
        if name not in _METRICS_EXPORTERS:
            raise StartupError(
                f"{source} is {name!r:.100}; this release takes: {', '.join(_METRICS_EXPORTERS)}"
            )
    if exporters:
        yield source, "telemetry.metrics", "otlp" in exporters
    if "prometheus" in exporters:
        host = environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "") or "localhost"
        port = environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "") or "9464"
        host = f"[{host}]" if ":" in host else host
        yield source, "telemetry.prometheus_listen", f"{host}:{port}"


def _named_resource(attributes: str) -> Iterator[tuple[str, str, object]]:
    """Yields the service's name, where it stands among a resource's attributes."""
    for pair in attributes.split(","):
        name, _, value = pair.partition("=")
        if name.strip() == "service.name" and value.strip():
            source = "OTEL_RESOURCE_ATTRIBUTES"
            yield source, "telemetry.service_name", unquote(value.strip())


def check_endpoints(config: TelemetryConfig) -> None:
    """Checks where things go. Raises StartupError."""
    for name in ("otlp_endpoint", "traces_endpoint", "metrics_endpoint"):
        endpoint = getattr(config, name)
        if endpoint and not endpoint.startswith(_SCHEMES):
            raise StartupError(
                f"telemetry.{name} is {endpoint!r:.100}; it must begin with http:// or https://"
            )


def _with_scheme(endpoint: str, *, is_plain: bool) -> str:
    """Returns an endpoint as settings have it: one without a scheme gets that of its transport."""
    if "://" in endpoint:
        return endpoint
    return f"{'http' if is_plain else 'https'}://{endpoint}"
