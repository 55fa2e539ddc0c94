"""Whether constraints can be enforced, and whether outputs are as they had to be."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from antiphon_engine.api.errors import AntiphonError, ErrorReason, FieldViolation
from antiphon_engine.api.grammar import LOADED_IN_TURN, GrammarBackend
from antiphon_server.constraints.check_messages import (
    Answer,
    Check,
    Died,
    Job,
    Overrun,
    Planned,
    Refused,
    TooComplex,
    Verified,
    Verify,
    WorkerLimits,
)
from antiphon_server.constraints.checked_cache import CheckedCache, Known
from antiphon_server.constraints.checker_link import CheckerGoneError, CheckerLink
from antiphon_server.constraints.request import (
    JSON_KINDS,
    CheckedConstraint,
    ConstraintKind,
    ConstraintRequest,
)

_RETRY_DELAY_S: Final = 1.0
_ANSWER_LIMIT_S: Final = 60.0
"""How long an answer may take: the time in line and a start of the process are in it."""
_NUM_TRIES: Final = 2
_KINDS_WITH_POINTERS: Final = JSON_KINDS | {ConstraintKind.TOOLS}

_Found = Known | TooComplex | Overrun | Died


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckerLimits:
    """How much is checked at a time, and how much is remembered."""

    max_pending: int = 66
    """Constraints whose check runs or waits."""
    cache_bytes: int = 16 << 20
    worker: WorkerLimits = field(default_factory=WorkerLimits)


class ConstraintChecker:
    """Checks constraints for one model, each once. Used on one event loop.

    Callers that ask for the same at the same time share one check. What a check has found is
    remembered, unless it only took too long.
    """

    def __init__(self, links: Mapping[GrammarBackend, CheckerLink], limits: CheckerLimits) -> None:
        """Takes the links over, one for each backend: they are closed with this."""
        self.num_violations = 0
        """Finished outputs that were not as they had to be."""
        self.num_compiled = 0
        """Constraints that were found good and made a grammar of, since the start."""
        self.compile_ns = 0
        """What that took, all together."""
        self._links = dict(links)
        self._limits = limits
        self._cache = CheckedCache(max_bytes=limits.cache_bytes)
        self._running: dict[bytes, asyncio.Task[_Found]] = {}
        self._loading: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Loads in the background what first checks would wait for. Idempotent.

        One after the other, what most ask for first.
        """
        if self._loading is None:
            self._links[GrammarBackend.LLGUIDANCE].start()
            self._loading = asyncio.create_task(self._load(), name="loading of checkers")

    async def close(self) -> None:
        """Ends all checks. Idempotent."""
        loading = [self._loading] if self._loading is not None else []
        for task in (*loading, *self._running.values()):
            task.cancel()
        await asyncio.gather(*(link.close() for link in self._links.values()))
        await asyncio.gather(*loading, return_exceptions=True)

    async def check(
        self, request: ConstraintRequest, *, path: str, waits: bool = False
    ) -> CheckedConstraint:
        """Returns how a constraint is enforced.

        Args:
            request: The constraint.
            path: The field that it is in.
            waits: Whether it waits for its place in line; otherwise it is refused where as many
                wait as may.

        Raises:
            AntiphonError: UNSUPPORTED_CONSTRAINT, CONSTRAINT_TOO_COMPLEX; OVERLOADED.
        """
        found: _Found | None = self._cache.find(request)
        if found is None:
            found = await self._find_out(request, waits=waits)
        if isinstance(found, CheckedConstraint):
            return found
        raise _refusal(found, request.kind, self._limits.worker, path)

    async def verify(self, constraint: CheckedConstraint, text: str) -> None:
        """Checks that a finished answer is as it had to be.

        Raises:
            AntiphonError: CONSTRAINT_VIOLATED: it isn't. INTERNAL: nobody can tell.
        """
        request, grammar = constraint.request, constraint.grammar
        try:
            answer = await self._ask(
                request.backend,
                lambda job_id: Verify(job_id=job_id, request=request, grammar=grammar, text=text),
            )
        except AntiphonError as error:
            raise _not_verified(error.message) from error
        if not isinstance(answer, Verified):
            raise _not_verified("the check of the output took too long")
        if answer.violation:
            self.num_violations += 1
            raise AntiphonError(
                ErrorReason.CONSTRAINT_VIOLATED,
                f"the finished output does not satisfy its {request.kind.value}: "
                f"{answer.violation}; this is a fault of the server",
                metadata={"constraint": request.kind.value},
            )

    async def _load(self) -> None:
        with contextlib.suppress(CheckerGoneError):
            for name in sorted(self._links, key=LOADED_IN_TURN.index):
                await self._links[name].load()

    async def _find_out(self, request: ConstraintRequest, *, waits: bool) -> _Found:
        """Has a constraint checked, together with all who ask for it meanwhile."""
        key = request.digest()
        while key not in self._running and len(self._running) >= self._limits.max_pending:
            if not waits:
                raise _overloaded(len(self._running), self._limits.max_pending)
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(self._check(request))
            self._running[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        # Whoever goes away leaves the check to the others.
        return await asyncio.shield(task)

    async def _check(self, request: ConstraintRequest) -> _Found:
        answer = await self._ask(
            request.backend, lambda job_id: Check(job_id=job_id, request=request)
        )
        if isinstance(answer, Planned):
            checked = CheckedConstraint(
                request=request, grammar=answer.grammar, compile_ns=answer.compile_ns
            )
            self.num_compiled += 1
            self.compile_ns += answer.compile_ns
            self._cache.add(request, checked)
            return checked
        assert not isinstance(answer, Verified), "it answers another question"
        if isinstance(answer, Refused):
            self._cache.add(request, answer)
        return answer

    def _forget(self, key: bytes, task: "asyncio.Task[_Found]") -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # Marks it as seen: those who waited may have gone.

    async def _ask(self, backend: GrammarBackend, make: Callable[[int], Job]) -> Answer:
        """Returns the answer to a job; one whose process ended over it is tried once more."""
        cause: Exception = CheckerGoneError("")
        for _ in range(_NUM_TRIES):
            try:
                return await self._links[backend].ask(make, limit_s=_ANSWER_LIMIT_S)
            except CheckerGoneError as error:
                cause = error
            except TimeoutError as error:
                cause = error
                break
        raise AntiphonError(
            ErrorReason.OVERLOADED,
            "the process that checks constraints has not answered; try again in "
            f"{_RETRY_DELAY_S:g} s",
            retry_delay_s=_RETRY_DELAY_S,
        ) from cause


def _refusal(
    found: Refused | TooComplex | Overrun | Died,
    kind: ConstraintKind,
    limits: WorkerLimits,
    path: str,
) -> AntiphonError:
    """Returns the error for a constraint that is not taken."""
    field_path = f"{path}.{kind.value}"
    if isinstance(found, Refused):
        return _unsupported(found, kind, field_path)
    metadata = {"field": field_path}
    if isinstance(found, TooComplex):
        message, metadata = found.message, {**metadata, **found.metadata}
    elif isinstance(found, Overrun):
        limit_ms = round(limits.cpu_s * 1000)
        message = f"its check took more than {limit_ms} ms of processor time; make it simpler"
        metadata["limit_ms"] = str(limit_ms)
    else:
        message = (
            f"its check broke off ({found.how}), as it does where it takes more than "
            f"{limits.memory_bytes} bytes of memory; make it simpler"
        )
        metadata["limit_bytes"] = str(limits.memory_bytes)
    return AntiphonError(
        ErrorReason.CONSTRAINT_TOO_COMPLEX, f"{field_path}: {message}", metadata=metadata
    )


def _unsupported(found: Refused, kind: ConstraintKind, field_path: str) -> AntiphonError:
    place = found.path
    if kind is ConstraintKind.TOOLS:
        # It begins with the tool and the field of it.
        element, _, place = place.partition("#")
        field_path += element
    if kind in _KINDS_WITH_POINTERS and place[:1] in ("", "/"):
        # Pointers are told as fragments, so that the one to the whole can be seen.
        place = f"#{place}"
    description = f"{place or 'all of it'}: {found.message}"
    return AntiphonError(
        ErrorReason.UNSUPPORTED_CONSTRAINT,
        f"{field_path}: {description}",
        metadata={"field": field_path, "path": place or "all of it"},
        violations=[FieldViolation(field_path, description)],
    )


def _overloaded(num_pending: int, limit: int) -> AntiphonError:
    return AntiphonError(
        ErrorReason.OVERLOADED,
        f"{num_pending} constraints are being checked or wait for that, and no more than {limit} "
        f"may; try again in {_RETRY_DELAY_S:g} s",
        metadata={"limit": str(limit)},
        retry_delay_s=_RETRY_DELAY_S,
    )


def _not_verified(why: str) -> AntiphonError:
    return AntiphonError(ErrorReason.INTERNAL, f"the finished output could not be checked: {why}")
