"""What the server and its engines are like now, looked at when somebody asks."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from antiphon_engine.api.errors import AntiphonError
from antiphon_engine.api.handle import EngineState
from antiphon_engine.api.messages import CoreStats
from antiphon_server.served_model import ServedModel
from antiphon_server.telemetry import metric_names as metrics
from antiphon_server.telemetry.metric_values import Family, Instrument, Point

ENGINE_LIMIT_S: Final = 1.0
"""How long an engine may take to tell of itself; one that doesn't is told as it was before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEndState:
    """What the front end tells of itself."""

    version: str = ""
    is_serving: bool = False
    is_store_writable: bool = True
    num_sessions: int = 0
    num_running_turns: int = 0
    num_queued_turns: int = 0
    num_calls: int = 0
    num_streams: int = 0
    certificate_expiry_s: int | None = None
    """In seconds since 1970; None: there is no certificate."""
    quota_refusals: Mapping[str, int] = field(default_factory=dict)
    """By quota."""


class Gauges:
    """Asks the engines and the front end. Used on one event loop."""

    def __init__(self) -> None:
        """Nothing is known before `follow`."""
        self._look: Callable[[], FrontEndState] = FrontEndState
        self._models: Sequence[ServedModel] = ()
        self._last_stats: dict[str, CoreStats] = {}
        self._num_restarts: Counter[str] = Counter()
        """By the name of the model."""

    def follow(self, models: Sequence[ServedModel], look: Callable[[], FrontEndState]) -> None:
        """Asks these from now on.

        Args:
            models: Those that are served.
            look: Returns what the front end tells of itself.
        """
        self._models, self._look = tuple(models), look
        for model in self._models:
            model.engine.on_state_change(partial(self._note_state, model.name))

    async def families(self) -> Sequence[Family]:
        """Returns all. Takes ENGINE_LIMIT_S at most."""
        await asyncio.gather(*(self._ask(model) for model in self._models))
        return [*_of_front_end(self._look()), *self._of_models()]

    def _note_state(self, name: str, state: EngineState) -> None:
        if state is EngineState.STARTING:
            self._num_restarts[name] += 1

    async def _ask(self, model: ServedModel) -> None:
        try:
            async with asyncio.timeout(ENGINE_LIMIT_S):
                self._last_stats[model.name] = await model.engine.stats()
        except (AntiphonError, TimeoutError):
            # Nothing runs in an engine that is down; one that is busy only answers late.
            if model.engine.state not in (EngineState.READY, EngineState.STALLED):
                self._last_stats.pop(model.name, None)

    def _of_models(self) -> Sequence[Family]:
        found: dict[str, tuple[Instrument, list[Point]]] = {}

        def tell(instrument: Instrument, value: float, *labels: str) -> None:
            found.setdefault(instrument.name, (instrument, []))[1].append(Point(labels, value))

        for model in self._models:
            name = model.name.removeprefix("models/")
            tell(metrics.ENGINE_UP, model.engine.state is EngineState.READY, name)
            tell(metrics.ENGINE_RESTARTS, self._num_restarts[model.name], name)
            checker = model.checker
            tell(metrics.CONSTRAINT_VIOLATIONS, checker.num_violations, name)
            tell(metrics.CONSTRAINT_COMPILES, checker.num_compiled, name)
            tell(metrics.CONSTRAINT_COMPILE_TIME, checker.compile_ns / 1e9, name)
            stats = self._last_stats.get(model.name)
            if stats is not None:
                _tell_engine(tell, name, stats, block_tokens=_block_tokens(model))
        return [Family(instrument, points) for instrument, points in found.values()]


def _block_tokens(model: ServedModel) -> int:
    facts = model.engine.facts
    return facts.block_tokens if facts else 0


def _tell_engine(
    tell: Callable[..., None], name: str, stats: CoreStats, *, block_tokens: int
) -> None:
    tell(metrics.ENGINE_RUNNING, stats.num_running, name)
    tell(metrics.ENGINE_WAITING, stats.num_waiting, name)
    tell(metrics.ENGINE_PAUSED, stats.num_paused, name)
    tell(metrics.ENGINE_HELD, stats.num_held, name)
    tell(metrics.ENGINE_GUIDES, stats.num_guides, name)
    used = stats.num_blocks_used / stats.num_blocks if stats.num_blocks else 0.0
    tell(metrics.KV_UTILIZATION, used, name)
    tell(metrics.KV_BLOCKS, stats.num_blocks_used, name, "used")
    tell(metrics.KV_BLOCKS, stats.num_blocks_cached, name, "cached")
    tell(metrics.KV_BLOCKS, stats.num_blocks_free, name, "free")
    tell(metrics.KV_HOST_BLOCKS, stats.num_host_blocks_used, name, "used")
    num_free = stats.num_host_blocks - stats.num_host_blocks_used
    tell(metrics.KV_HOST_BLOCKS, num_free, name, "free")
    tell(metrics.KV_INFO, 1, name, str(block_tokens), str(stats.num_blocks))
    tell(metrics.ENGINE_STEP_TIME, stats.step_time_ns / 1e9, name)
    tell(metrics.ENGINE_SCHEDULE_TIME, stats.schedule_time_ns / 1e9, name)
    for counted, instrument in metrics.ENGINE_COUNTS.items():
        tell(instrument, getattr(stats, counted), name)


def _of_front_end(state: FrontEndState) -> list[Family]:
    plain: dict[Instrument, float] = {
        metrics.SERVING: state.is_serving,
        metrics.STORE_WRITABLE: state.is_store_writable,
        metrics.SESSIONS: state.num_sessions,
        metrics.CALLS: state.num_calls,
        metrics.STREAMS: state.num_streams,
    }
    if state.certificate_expiry_s is not None:
        plain[metrics.CERTIFICATE_EXPIRY] = state.certificate_expiry_s
    turns = [
        Point(("running",), state.num_running_turns),
        Point(("queued",), state.num_queued_turns),
    ]
    refusals = [Point((quota,), num) for quota, num in state.quota_refusals.items()]
    return [
        Family(metrics.INFO, [Point((state.version,), 1)]),
        *(Family(instrument, [Point((), value)]) for instrument, value in plain.items()),
        Family(metrics.TURNS, turns),
        Family(metrics.QUOTA_REFUSALS, refusals),
    ]
