"""What a checker's worker does with a job."""

import time
from functools import partial

from antiphon_engine.api.grammar import Grammar
from antiphon_server.constraints.check_messages import (
    Check,
    Finding,
    Job,
    Planned,
    Refused,
    TooComplex,
    Verified,
    Verify,
)
from antiphon_server.constraints.following import Speller, is_whole
from antiphon_server.constraints.json_schema import PlanLimits
from antiphon_server.constraints.planning import Compiler, Planner
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)
from antiphon_server.constraints.verification import Verification


class Checking:
    """Does a checker's jobs."""

    def __init__(self, compiler: Compiler, limits: PlanLimits, *, speller: Speller) -> None:
        self._compiler = compiler
        self._planner = Planner(compiler, limits)
        self._speller = speller
        self._verification = Verification()

    def __call__(self, job: Job) -> Finding:
        """Returns what came of a job."""
        try:
            return self._check(job) if isinstance(job, Check) else self._verify(job)
        except UnsupportedConstraintError as error:
            return Refused(job_id=job.job_id, path=error.path, message=error.message)
        except ConstraintTooComplexError as error:
            return TooComplex(job_id=job.job_id, message=error.message, metadata=error.metadata)
        except RecursionError:
            return TooComplex(job_id=job.job_id, message="it is nested too deeply; make it flatter")

    def _check(self, job: Check) -> Planned:
        begun_ns = time.perf_counter_ns()
        grammar = self._planner.plan(job.request)
        return Planned(
            job_id=job.job_id, grammar=grammar, compile_ns=time.perf_counter_ns() - begun_ns
        )

    def _verify(self, job: Verify) -> Verified:
        violation = self._verification.find_violation(
            job.request, job.text, partial(self._is_whole, job.grammar)
        )
        return Verified(job_id=job.job_id, violation=violation)

    def _is_whole(self, grammar: Grammar, text: str) -> bool:
        return is_whole(self._compiler.compile(grammar), text, self._speller)
