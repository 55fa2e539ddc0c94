"""Starts generations: admits requests, takes their places, and hands them to the engine."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

from antiphon_engine.api.handle import MAX_UNREAD_BYTES, RequestStream
from antiphon_server.access.tenancy import Tenancy, unlimited_tenancy
from antiphon_server.admission import Admission, Ticket
from antiphon_server.ended_stream import EndedStream
from antiphon_server.endurance import EnduringStream, EngineReadiness
from antiphon_server.generation import Generation
from antiphon_server.generation_run import Run
from antiphon_server.generation_spec import GenerationSpec, leave, to_request
from antiphon_server.offload import Offload
from antiphon_server.served_model import ServedModel


class Generator:
    """Starts the generations of one model. Used from one event loop."""

    def __init__(
        self,
        model: ServedModel,
        *,
        offload: Offload,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        tenancy: Tenancy | None = None,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
    ) -> None:
        """Sets what it works with.

        Args:
            model: What generates.
            offload: Where work on large answers runs.
            clock_ns: The monotonic clock.
            tenancy: What keeps tenants apart; None: nobody has quotas.
            max_unread_bytes: What may come of a request, about, before it is held for its reader.
        """
        self._max_unread_bytes = max_unread_bytes
        self._model = model
        self._tenancy = tenancy or unlimited_tenancy()
        self._offload = offload
        self._clock_ns = clock_ns
        self.readiness: Final = EngineReadiness(model.engine)
        self.admission: Final = Admission(
            engine=model.engine,
            max_queued_requests=model.limits.max_queued_requests,
            clock_ns=clock_ns,
        )

    def check(self, tenant: str, *, deadline_ns: int | None) -> None:
        """Checks that a request could start, before work is put into it. Raises like `start`."""
        self.admission.check(deadline_ns=deadline_ns)
        self._tenancy.quotas.check(tenant)

    def start(self, spec: GenerationSpec) -> Generation:
        """Admits and submits a request; whoever gets its generation has to close that.

        Raises:
            AntiphonError: ENGINE_DOWN, OVERLOADED, QUOTA_EXCEEDED or TIMEOUT; the engine has not
                seen it then. INTERNAL where it outlived too many.
        """
        with contextlib.ExitStack() as undo:
            ticket = self._admit(spec)
            undo.callback(ticket.release)
            place = spec.place or self._tenancy.quotas.enter(spec.scope.tenant)
            undo.callback(leave, spec, place, 0)
            place.reserve(
                prompt_tokens=len(spec.prompt_ids),
                output_tokens=spec.num_outputs * spec.config.stop.max_output_tokens,
            )
            stream = self._submit(spec)
            undo.pop_all()
        run = Run(
            stream=stream,
            ticket=ticket,
            place=place,
            offload=self._offload,
            clock_ns=self._clock_ns,
        )
        return Generation(spec, model=self._model, run=run)

    def _admit(self, spec: GenerationSpec) -> Ticket:
        endurance = spec.endurance
        if endurance is not None and endurance.was_admitted:
            return self.admission.admit_again()
        outlives_engine = endurance is not None
        return self.admission.admit(deadline_ns=spec.deadline_ns, outlives_engine=outlives_engine)

    def _submit(self, spec: GenerationSpec) -> RequestStream:
        if spec.resumed.ended is not None:
            return EndedStream(spec.resumed.ended, clock_ns=self._clock_ns)
        scope = self._tenancy.scopes.engine_scope(spec.scope)
        engine, request = self._model.engine, to_request(spec, scope)
        if spec.endurance is None:
            return engine.submit(request, max_unread_bytes=self._max_unread_bytes)
        return EnduringStream(
            request, engine=engine, readiness=self.readiness, endurance=spec.endurance
        )
