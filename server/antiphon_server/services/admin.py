"""AdminService: looks into the server, for those who run it."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from antiphon.v1 import admin_pb2, admin_pb2_grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from grpc.aio import ServicerContext

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation, InvalidRequest
from antiphon_engine.api.handle import EngineState
from antiphon_server.draining import Draining
from antiphon_server.served_model import ServedModel
from antiphon_server.served_models import find_model
from antiphon_server.times import to_s

MIN_INTERVAL_S: Final = 0.01
DEFAULT_INTERVAL_S: Final = 1.0
MAX_INTERVAL_S: Final = 3600.0
MAX_LIMIT_S: Final = 86400.0
MAX_WATCHERS: Final = 16
"""At the shortest interval they make the engine and the event loop answer 1,600 times a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What the server knows of itself."""

    version: str
    start_time: datetime
    settings: Mapping[str, str]
    drain_limit_s: float
    """What a drain is limited to that says nothing else."""


class AdminService(admin_pb2_grpc.AdminServiceServicer):
    """Answers from the engine's counters and the server's own facts."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        draining: Draining,
        *,
        facts: ServerFacts,
        count_sessions: Callable[[], int],
        now: Callable[[], datetime],
    ) -> None:
        """Sets what it looks at.

        Args:
            models: By name.
            draining: What drains it.
            facts: What GetServerInfo tells.
            count_sessions: How many sessions are open.
            now: The wall clock, in UTC.
        """
        self._models = models
        self._draining = draining
        self._facts = facts
        self._count_sessions = count_sessions
        self._now = now
        self._num_watchers = 0
        self._engine_start_times = {name: now() for name in models}
        for name, model in models.items():
            model.engine.on_state_change(functools.partial(self._note_start, name))

    async def GetServerInfo(
        self,
        request: admin_pb2.GetServerInfoRequest,
        context: ServicerContext[admin_pb2.GetServerInfoRequest, admin_pb2.ServerInfo],
    ) -> admin_pb2.ServerInfo:
        """Returns the release, the settings in force and whether the server drains."""
        return admin_pb2.ServerInfo(
            version=self._facts.version,
            start_time=_timestamp(self._facts.start_time),
            settings=self._facts.settings,
            draining=self._draining.begun,
        )

    async def GetEngineStats(
        self,
        request: admin_pb2.GetEngineStatsRequest,
        context: ServicerContext[admin_pb2.GetEngineStatsRequest, admin_pb2.EngineStats],
    ) -> admin_pb2.EngineStats:
        """Returns the engine's counters now."""
        return await self._read(find_model(self._models, request.model))

    async def WatchEngineStats(
        self,
        request: admin_pb2.WatchEngineStatsRequest,
        context: ServicerContext[admin_pb2.WatchEngineStatsRequest, admin_pb2.EngineStats],
    ) -> AsyncIterator[admin_pb2.EngineStats]:
        """Yields the engine's counters at once and then once an interval."""
        model = find_model(self._models, request.model)
        interval_s = DEFAULT_INTERVAL_S
        if request.HasField("interval"):
            interval_s = _checked_interval_s(request.interval)
        with self._watcher():
            while True:
                yield await self._read(model)
                await asyncio.sleep(interval_s)

    async def Drain(
        self,
        request: admin_pb2.DrainRequest,
        context: ServicerContext[admin_pb2.DrainRequest, admin_pb2.DrainResponse],
    ) -> admin_pb2.DrainResponse:
        """Takes no new work from now on, and answers when none is left."""
        limit_s = self._facts.drain_limit_s
        if request.HasField("limit"):
            limit_s = _checked_limit_s(request.limit)
        drained = await self._draining.drain(limit_s)
        return admin_pb2.DrainResponse(
            num_finished=drained.num_finished, num_cancelled=drained.num_cancelled
        )

    async def FlushPrefixCache(
        self,
        request: admin_pb2.FlushPrefixCacheRequest,
        context: ServicerContext[
            admin_pb2.FlushPrefixCacheRequest, admin_pb2.FlushPrefixCacheResponse
        ],
    ) -> admin_pb2.FlushPrefixCacheResponse:
        """Forgets what the prefix cache holds for nobody."""
        model = find_model(self._models, request.model)
        num_blocks = await model.engine.flush_prefix_cache()
        return admin_pb2.FlushPrefixCacheResponse(num_blocks=num_blocks)

    @contextlib.contextmanager
    def _watcher(self) -> Iterator[None]:
        if self._num_watchers >= MAX_WATCHERS:
            raise AntiphonError(
                ErrorReason.OVERLOADED,
                f"{MAX_WATCHERS} calls watch the engine already, the limit; use GetEngineStats",
                metadata={"limit": str(MAX_WATCHERS)},
                retry_delay_s=DEFAULT_INTERVAL_S,
            )
        self._num_watchers += 1
        try:
            yield
        finally:
            self._num_watchers -= 1

    async def _read(self, model: ServedModel) -> admin_pb2.EngineStats:
        stats = await model.engine.stats()
        return admin_pb2.EngineStats(
            model=model.name,
            sample_time=_timestamp(self._now()),
            start_time=_timestamp(self._engine_start_times[model.name]),
            step=stats.step,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_paused=stats.num_paused,
            num_held=stats.num_held,
            num_guides=stats.num_guides,
            num_sessions=self._count_sessions(),
            num_blocks=stats.num_blocks,
            num_blocks_used=stats.num_blocks_used,
            num_blocks_cached=stats.num_blocks_cached,
            num_blocks_free=stats.num_blocks_free,
            num_host_blocks=stats.num_host_blocks,
            num_host_blocks_used=stats.num_host_blocks_used,
            num_prefilled_tokens_total=stats.num_prefilled_tokens_total,
            num_reused_tokens_total=stats.num_reused_tokens_total,
            num_generated_tokens_total=stats.num_generated_tokens_total,
            num_preemptions_total=stats.num_preemptions_total,
            num_evictions_total=stats.num_evictions_total,
            num_offloads_total=stats.num_offloads_total,
            num_onloads_total=stats.num_onloads_total,
            # To the engine they ended well.
            num_finished_total={**stats.num_finished_total, **_violations(model)},
            step_time=_duration(stats.step_time_ns),
            schedule_time=_duration(stats.schedule_time_ns),
            latencies=model.latencies.tell(),
        )

    def _note_start(self, name: str, state: EngineState) -> None:
        if state is EngineState.STARTING:
            self._engine_start_times[name] = self._now()


def _violations(model: ServedModel) -> dict[str, int]:
    num_violations = model.checker.num_violations
    return {ErrorReason.CONSTRAINT_VIOLATED.value: num_violations} if num_violations else {}


def _checked_limit_s(limit: Duration) -> float:
    limit_s = to_s(limit)
    if not 0 <= limit_s <= MAX_LIMIT_S:
        raise InvalidRequest(
            FieldViolation("limit", f"is {limit_s:g} s; it may be from 0 to {MAX_LIMIT_S:g} s")
        )
    return limit_s


def _checked_interval_s(interval: Duration) -> float:
    interval_s = to_s(interval)
    if not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:
        raise InvalidRequest(
            FieldViolation(
                "interval",
                f"is {interval_s:g} s; it may be from {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g} s",
            )
        )
    return interval_s


def _timestamp(time: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def _duration(nanoseconds: int) -> Duration:
    return Duration(seconds=nanoseconds // 10**9, nanos=nanoseconds % 10**9)
