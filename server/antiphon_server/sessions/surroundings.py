"""What all sessions of a server share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon_server.access.tenancy import Tenancy, unlimited_tenancy
from antiphon_server.generator import Generator
from antiphon_server.offload import Offload
from antiphon_server.served_model import ServedModel
from antiphon_server.sessions.ended_logs import EndedLogs
from antiphon_server.sessions.limits import Clock, Draws, SessionLimits
from antiphon_server.sessions.shared_instants import SharedInstants
from antiphon_server.sessions.store import SessionStore
from antiphon_server.telemetry.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all sessions of a server share."""

    store: SessionStore
    models: Mapping[str, ServedModel]
    generators: Mapping[str, Generator]
    """By the model's name."""
    offload: Offload
    ended_logs: EndedLogs
    limits: SessionLimits = field(default_factory=SessionLimits)
    checkpoint_instants: SharedInstants = field(default_factory=SharedInstants)
    clock: Clock = field(default_factory=Clock)
    draws: Draws = field(default_factory=Draws)
    tenancy: Tenancy = field(default_factory=unlimited_tenancy)
    telemetry: Telemetry = field(default_factory=Telemetry)
