"""Puts telemetry together from the settings."""

from antiphon_server.config import TelemetryConfig
from antiphon_server.telemetry.request_recorder import ContentCapture
from antiphon_server.telemetry.sampling import HeadSampling, SpanPlaces, TailSampling
from antiphon_server.telemetry.telemetry import RecordSink, Telemetry


def new_telemetry(config: TelemetryConfig) -> Telemetry:
    """Returns what the settings ask for; nothing of OpenTelemetry is loaded where that is none.

    Raises:
        StartupError: an exporter can't be had.
    """
    sinks: list[RecordSink] = []
    places = None
    return Telemetry(
        sinks=sinks,
        places=places,
        tail=TailSampling(slow_first_token_s=config.slow_first_token_s),
        capture=ContentCapture(is_on=config.capture_content, max_bytes=config.max_content_bytes),
    )


def head_sampling(config: TelemetryConfig) -> HeadSampling:
    """Returns the decision at the start that the settings ask for."""
    ratio = {"always_on": 1.0, "always_off": 0.0}.get(
        config.sampler.removeprefix("parentbased_"), config.sample_ratio
    )
    return HeadSampling(follows_parent=config.sampler.startswith("parentbased_"), ratio=ratio)


def new_places(config: TelemetryConfig) -> SpanPlaces:
    """Returns what gives spans their places."""
    return SpanPlaces(head_sampling(config))
