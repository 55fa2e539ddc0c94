"""Puts the server together: ports, services and sessions around the models that it has."""

import asyncio
import contextlib
import random
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Final

import grpc
from antiphon.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    session_pb2,
    session_pb2_grpc,
)
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from antiphon_engine.api.errors import AntiphonError, StartupError
from antiphon_server.access.entrance import Entrance
from antiphon_server.access.quotas import TenantQuotas
from antiphon_server.access.tenancy import Tenancy
from antiphon_server.config import Config
from antiphon_server.draining import Draining
from antiphon_server.generator import Generator
from antiphon_server.interceptors import CallHandling, CallInterceptor
from antiphon_server.listen import Address
from antiphon_server.long_calls import LongCalls
from antiphon_server.metering import Metering
from antiphon_server.offload import Offload
from antiphon_server.request_preparation import RequestPreparation
from antiphon_server.served_model import ServedModel
from antiphon_server.services.admin import AdminService, ServerFacts
from antiphon_server.services.health import HealthService
from antiphon_server.services.inference import InferenceService
from antiphon_server.services.models import ModelService
from antiphon_server.services.multiplex import MultiplexLimits
from antiphon_server.services.port_services import PortServices
from antiphon_server.services.sessions import SessionService
from antiphon_server.services.tokenizer import TokenizerService
from antiphon_server.sessions.limits import Clock, SessionLimits
from antiphon_server.sessions.registry import SessionRegistry
from antiphon_server.sessions.sqlite_store import SqliteStore
from antiphon_server.settings import describe
from antiphon_server.stream_ages import StreamAges
from antiphon_server.supervision import Supervision
from antiphon_server.telemetry.figures import TelemetryFigures
from antiphon_server.telemetry.gauges import FrontEndState
from antiphon_server.telemetry.providers import new_telemetry
from antiphon_server.transport import Guard, take_ports

MAIN_FILES: Final = (
    inference_pb2.DESCRIPTOR,
    session_pb2.DESCRIPTOR,
    model_pb2.DESCRIPTOR,
)
ADMIN_FILES: Final = (admin_pb2.DESCRIPTOR,)

_CLOSING_S: Final = 5.0
"""What of the time that a server has for its end is for what follows the turns."""
_CUT_OFF_S: Final = 1.0
"""How long cancelled calls may take to tell their callers."""


class Server:
    """A server from the taking of its ports to its end. Lives on one event loop.

    Made, it holds its ports; `answer` lets it say that it isn't ready; `open` serves; `close` ends
    it, opened or not. The models' checkers end with it.
    """

    def __init__(
        self,
        config: Config,
        *,
        figures: TelemetryFigures | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ):
        """Takes the ports.

        Args:
            config: The settings in force.
            figures: What the log counts of itself, and telemetry will.
            now: The wall clock, in UTC.

        Raises:
            StartupError: a port can't be had.
        """
        self.supervision: Final = Supervision()
        self._config = config
        self._now = now
        self._start_time = now()
        self._offload = Offload(
            num_threads=config.limits.offload_threads, max_pending=config.limits.max_offloaded_jobs
        )
        self._entrance = Entrance(config, now=now)
        figures, instance_id = figures or TelemetryFigures(), str(uuid.uuid4())
        self.metering: Final = Metering(
            config,
            self._entrance,
            methods=_method_names(),
            instance_id=instance_id,
            figures=figures,
        )
        self.telemetry: Final = new_telemetry(
            config.telemetry,
            instance_id=instance_id,
            figures=figures,
            log_requests=config.logging.requests,
            more_sinks=self.metering.sinks,
        )
        self._ports = take_ports(
            config.server,
            main=self._guard(self.supervision.call, needs_admin=False),
            # Those who run the server look into it while it drains, too.
            admin=self._guard(contextlib.nullcontext, needs_admin=True),
        )
        ages = StreamAges(
            max_age_s=config.server.max_connection_age_s,
            grace_s=config.server.max_connection_age_grace_s,
        )
        self._long_calls = LongCalls(ages)
        self.draining: Final = Draining(self.supervision, self._long_calls)
        self._main_services = PortServices(_service_names(MAIN_FILES))
        self._admin_services = PortServices(_service_names(ADMIN_FILES))
        self._answers = False
        self._store: SqliteStore | None = None
        self._tenancy: Tenancy | None = None
        self._registry: SessionRegistry | None = None
        self._models: Sequence[ServedModel] = ()

    @property
    def address(self) -> Address:
        """Where clients connect, with the real port."""
        return self._ports.main.address

    @property
    def admin_address(self) -> Address:
        """Where those who run the server connect, with the real port."""
        return self._ports.admin.address

    async def answer(self) -> None:
        """Answers health and reflection, and tells all other callers to come again. Idempotent."""
        if self._answers:
            return
        self._answers = True
        self._entrance.keep_up()
        self.metering.start()
        for port, services, files in (
            (self._ports.admin, self._admin_services, ADMIN_FILES),
            (self._ports.main, self._main_services, MAIN_FILES),
        ):
            port.server.add_generic_rpc_handlers([services])
            self._add_common_services(port.server, files)
            await port.server.start()

    async def open_store(self) -> None:
        """Opens the session store and the server's secret, where it hasn't yet. Needs no model.

        Raises:
            StartupError: one of them can't be used.
        """
        if self._store is None:
            self._store = await asyncio.to_thread(
                SqliteStore.open,
                Path(self._config.store.path),
                synchronous=self._config.store.synchronous,
                owner=secrets.token_hex(8),
                max_bytes=self._config.store.max_bytes,
            )
            self._store.health.follow(self.supervision.note_store)
        if self._tenancy is None:
            self._tenancy = await asyncio.to_thread(self._entrance.new_tenancy)

    async def open(self, models: Sequence[ServedModel]) -> None:
        """Opens the session store and serves the models from now on.

        Raises:
            StartupError: the session store can't be used.
        """
        self._models = tuple(models)
        by_name = {model.name: model for model in models}
        assert len(by_name) == len(models) >= 1
        await self.answer()
        await self.open_store()
        assert self._store is not None
        assert self._tenancy is not None
        generators = {
            name: Generator(
                model,
                offload=self._offload,
                tenancy=self._tenancy,
                max_unread_bytes=self._config.limits.max_undelivered_bytes,
            )
            for name, model in by_name.items()
        }
        self._registry = SessionRegistry(
            store=self._store,
            models=by_name,
            generators=generators,
            offload=self._offload,
            limits=SessionLimits(
                max_queued_turns=self._config.sessions.max_queued_turns,
                idle_ttl_s=self._config.sessions.idle_ttl_s,
                retention_s=self._config.sessions.retention_s,
                max_loaded=self._config.sessions.max_loaded,
                max_watchers=self._config.sessions.max_watchers,
                max_undelivered_bytes=self._config.limits.max_undelivered_bytes,
                slow_reader_grace_s=self._config.limits.slow_reader_grace_s,
                reconnect_grace_s=self._config.sessions.reconnect_grace_s,
                log_grace_s=self._config.sessions.log_grace_s,
                max_ended_log_bytes=self._config.sessions.max_ended_log_bytes,
                recovery_wait_s=self._config.sessions.recovery_wait_s,
                checkpoint_tokens=self._config.sessions.checkpoint_tokens,
                checkpoint_interval_s=self._config.sessions.checkpoint_interval_s,
                max_attempts=self._config.sessions.max_attempts,
            ),
            clock=Clock(),
            tenancy=self._tenancy,
            telemetry=self.telemetry,
        )
        try:
            await self._registry.start()
        except AntiphonError as error:
            raise StartupError(f"{self._config.store.path}: {error}") from error
        self.draining.follow(self._registry)
        self._add_main_services(by_name, generators, self._registry)
        self._add_admin_services(by_name, self._registry)
        self.metering.follow(
            models, partial(self._front_end_state, self._registry, self._tenancy.quotas)
        )
        self._main_services.open()
        self._admin_services.open()
        self.supervision.follow([model.engine for model in models])

    async def close(self, limit_s: float) -> int:
        """Takes no new calls, lets running ones go on, and cuts off the rest in time for `limit_s`.

        Turns that have not ended are left to the next server. Idempotent.

        Returns:
            How many calls were cut off and turns left.
        """
        drained = await self.draining.leave(max(0.0, limit_s - min(_CLOSING_S, limit_s / 4)))
        await self._ports.main.server.stop(0)
        await self.supervision.wait_idle(_CUT_OFF_S)
        await self.metering.look()
        registry, self._registry = self._registry, None
        if registry is not None:
            await registry.close()
        store, self._store = self._store, None
        if store is not None:
            await store.close()
        for model in self._models:
            await model.checker.close()
        await self._ports.admin.server.stop(0)
        await self._entrance.close()
        self._offload.close()
        flush_limit_s = self._config.telemetry.flush_limit_s
        async with asyncio.TaskGroup() as group:
            group.create_task(self.telemetry.close(flush_limit_s))
            group.create_task(self.metering.close(flush_limit_s))
        return drained.num_cancelled + drained.num_left + drained.num_calls

    def _front_end_state(self, registry: SessionRegistry, quotas: TenantQuotas) -> FrontEndState:
        num_turns, num_queued = registry.num_live_turns, registry.num_queued_turns
        return FrontEndState(
            version=metadata.version("antiphon"),
            is_serving=self.supervision.serving,
            is_store_writable=self.supervision.store_writable,
            num_sessions=registry.num_sessions,
            num_running_turns=num_turns - num_queued,
            num_queued_turns=num_queued,
            num_calls=self.supervision.num_calls,
            num_streams=self._long_calls.num_open,
            certificate_expiry_s=self._entrance.certificate_expiry_s,
            quota_refusals=dict(quotas.num_refused),
        )

    def _guard(
        self, count_call: Callable[[], AbstractContextManager[None]], *, needs_admin: bool
    ) -> Guard:
        interceptor = CallInterceptor(
            CallHandling(
                count_call=count_call,
                authenticate=self._entrance.check(needs_admin=needs_admin),
                offload=self._offload,
                draw_request_id=lambda: secrets.token_hex(8),
                telemetry=self.telemetry,
            )
        )
        return Guard(interceptors=[interceptor], credentials=self._entrance.port_credentials())

    def _add_main_services(
        self,
        models: Mapping[str, ServedModel],
        generators: Mapping[str, Generator],
        registry: SessionRegistry,
    ) -> None:
        server = self._main_services.as_server
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(
            self._inference_service(models, generators),
            server,
        )
        session_pb2_grpc.add_SessionServiceServicer_to_server(
            SessionService(registry, self._long_calls), server
        )
        model_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(models), server)
        model_pb2_grpc.add_TokenizerServiceServicer_to_server(
            TokenizerService(models, self._offload), server
        )

    def _inference_service(
        self, models: Mapping[str, ServedModel], generators: Mapping[str, Generator]
    ) -> InferenceService:
        limits = self._config.limits
        return InferenceService(
            RequestPreparation(
                models, generators, offload=self._offload, random_source=random.SystemRandom()
            ),
            offload=self._offload,
            long_calls=self._long_calls,
            telemetry=self.telemetry,
            multiplex_limits=MultiplexLimits(
                max_running=limits.max_multiplexed_requests,
                max_waiting_bytes=self._config.server.max_message_bytes,
                max_undelivered_bytes=limits.max_undelivered_bytes,
                grace_s=limits.slow_reader_grace_s,
            ),
        )

    def _add_admin_services(
        self, models: Mapping[str, ServedModel], registry: SessionRegistry
    ) -> None:
        facts = ServerFacts(
            version=metadata.version("antiphon"),
            start_time=self._start_time,
            settings=describe(self._config),
            drain_limit_s=self._config.server.drain_limit_s,
        )
        service = AdminService(
            models,
            self.draining,
            facts=facts,
            count_sessions=lambda: registry.num_sessions,
            now=self._now,
        )
        admin_pb2_grpc.add_AdminServiceServicer_to_server(service, self._admin_services.as_server)

    def _add_common_services(
        self, server: grpc.aio.Server, files: Sequence[FileDescriptor]
    ) -> None:
        """Adds health and reflection, which both ports have."""
        names = _service_names(files)
        health = HealthService(self.supervision, names)
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        shown = [*names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
        reflection.enable_server_reflection([*shown, reflection.SERVICE_NAME], server)


def _method_names() -> list[str]:
    """Returns all methods of both ports, as `antiphon.v1.Service/Method`."""
    return [
        f"{service.full_name}/{method.name}"
        for file in (*MAIN_FILES, *ADMIN_FILES)
        for service in file.services_by_name.values()
        for method in service.methods
    ]


def _service_names(files: Sequence[FileDescriptor]) -> list[str]:
    return [service.full_name for file in files for service in file.services_by_name.values()]
