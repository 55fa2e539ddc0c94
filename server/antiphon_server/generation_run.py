"""What a generation that runs has taken."""

from collections.abc import Callable
from dataclasses import dataclass

from antiphon_engine.api.handle import RequestStream
from antiphon_server.access.quotas import Place
from antiphon_server.admission import Ticket
from antiphon_server.offload import Offload


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a generation lives on."""

    stream: RequestStream
    ticket: Ticket
    place: Place
    offload: Offload
    clock_ns: Callable[[], int]
