"""What is measured, and who reads it, as the settings ask."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from antiphon_server.access.entrance import Entrance
from antiphon_server.config import Config
from antiphon_server.listen import Address, listening_socket, parse_mode
from antiphon_server.served_model import ServedModel
from antiphon_server.telemetry.figures import TelemetryFigures
from antiphon_server.telemetry.gauges import FrontEndState, Gauges
from antiphon_server.telemetry.providers import new_metric_export
from antiphon_server.telemetry.request_metrics import RequestMetrics
from antiphon_server.telemetry.server_metrics import ServerMetrics
from antiphon_server.telemetry.telemetry import RecordSink
from antiphon_server.transport import check_address

if TYPE_CHECKING:
    from antiphon_server.telemetry.otlp_metrics import MetricExport
    from antiphon_server.telemetry.prometheus import PrometheusEndpoint

_KEY = "telemetry.prometheus_listen"


class Metering:
    """Counts, and lets Prometheus and a collector read. Used on one event loop.

    Where the settings name neither, nothing is counted. Made, it holds its port.
    """

    def __init__(
        self,
        config: Config,
        entrance: Entrance,
        *,
        methods: Iterable[str],
        instance_id: str,
        figures: TelemetryFigures,
    ) -> None:
        """Takes the port.

        Args:
            config: The settings in force.
            entrance: Who may read.
            methods: All that are served, as `antiphon.v1.Service/Method`.
            instance_id: Tells this server from others of its name.
            figures: What telemetry counts of itself.

        Raises:
            StartupError: the port can't be had.
        """
        self.sinks: Sequence[RecordSink] = ()
        """What counts; empty: nobody wants to know."""
        self.address: Address | None = None
        """Where Prometheus reads, with the real port; None: nowhere."""
        self._metrics: ServerMetrics | None = None
        self._endpoint: PrometheusEndpoint | None = None
        self._export: MetricExport | None = None
        self._is_encrypted = False
        telemetry = config.telemetry
        sends = telemetry.metrics and (telemetry.metrics_endpoint or telemetry.otlp_endpoint)
        if not telemetry.enabled or not (sends or telemetry.prometheus_listen):
            return
        requests = RequestMetrics(methods=methods)
        self.sinks = (requests,)
        self._metrics = ServerMetrics(requests, Gauges(), figures=figures)
        if telemetry.prometheus_listen:
            self._endpoint = self._take_port(config, entrance, self._metrics)
        if sends:
            self._export = new_metric_export(
                telemetry,
                sends,
                instance_id=instance_id,
                families=self._metrics.families,
                figures=figures,
            )

    def follow(self, models: Sequence[ServedModel], look: Callable[[], FrontEndState]) -> None:
        """Tells of these models and of the front end, too."""
        if self._metrics is not None:
            self._metrics.requests.follow(model.name.removeprefix("models/") for model in models)
            self._metrics.gauges.follow(models, look)

    def start(self) -> None:
        """Lets readers read."""
        if self._metrics is not None:
            self._metrics.start()
        if self._endpoint is not None:
            self._endpoint.start()
            scheme = "https" if self._is_encrypted else "http"
            address = str(self.address)
            structlog.get_logger().info("metrics are served", address=address, scheme=scheme)
        if self._export is not None:
            self._export.start()

    async def look(self) -> None:
        """Takes the last look at engines and sessions before they go, where it is to be told."""
        if self._metrics is not None and self._export is not None:
            await self._metrics.look()

    async def close(self, limit_s: float) -> None:
        """Exports once more, and stops, in so much time. Idempotent."""
        if self._metrics is not None:
            self._metrics.stop()
        async with asyncio.TaskGroup() as group:
            if self._export is not None:
                group.create_task(self._export.close(limit_s))
            if self._endpoint is not None:
                group.create_task(asyncio.to_thread(self._endpoint.close, limit_s))

    def _take_port(
        self, config: Config, entrance: Entrance, metrics: ServerMetrics
    ) -> "PrometheusEndpoint":
        from antiphon_server.telemetry.prometheus import EndpointDoor, PrometheusEndpoint

        server = config.server
        address = check_address(config.telemetry.prometheus_listen, _KEY, server)
        mode = parse_mode(server.socket_mode, key="server.socket_mode")
        listening, self.address = listening_socket(address, key=_KEY, socket_mode=mode)
        door = EndpointDoor(
            authenticate=entrance.check(needs_admin=True), tls=entrance.port_context()
        )
        self._is_encrypted = door.tls is not None
        return PrometheusEndpoint(listening, door=door, families=metrics.families)
