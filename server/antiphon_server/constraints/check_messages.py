"""Messages between the front end and the checker process: frozen values, encoded with msgspec."""

import msgspec

from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_server.constraints.request import ConstraintRequest


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one job may take."""

    cpu_s: float = 2.0
    memory_bytes: int = 1 << 29


class CheckerStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a checker process is told on its standard input, as JSON."""

    checkpoint: str
    """The directory that the tokenizer is in."""
    vocabulary_size: int
    """The model's, which may exceed the tokenizer's."""
    backend: GrammarBackend = GrammarBackend.LLGUIDANCE
    """What its constraints are enforced by."""
    is_waited_for: bool = False
    """Whether somebody waits for it to be loaded."""
    num_workers: int = 2
    worker_limits: WorkerLimits = WorkerLimits()
    max_depth: int = 64
    """How deeply the parts of a constraint may be nested."""
    max_grammar_bytes: int = 1 << 20


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A value that crosses; its tag is the class's name."""


# Front end to checker. Each is answered once.


class Check(_Message, frozen=True, kw_only=True):
    """Find out how a constraint can be enforced. Answered by Planned, Refused or TooComplex."""

    job_id: int
    request: ConstraintRequest


class Verify(_Message, frozen=True, kw_only=True):
    """Find out whether a finished output is as it had to be. Answered by Verified."""

    job_id: int
    request: ConstraintRequest
    grammar: Grammar
    text: str


# Checker to front end.


class Loaded(_Message, frozen=True, kw_only=True):
    """The checker is ready for work."""


class Planned(_Message, frozen=True, kw_only=True):
    """The constraint can be enforced, and compiles."""

    job_id: int
    grammar: Grammar
    compile_ns: int


class Refused(_Message, frozen=True, kw_only=True):
    """A part of the constraint can't be enforced."""

    job_id: int
    path: str
    """See UnsupportedConstraintError."""
    message: str


class TooComplex(_Message, frozen=True, kw_only=True):
    """The constraint is past a limit on its size or depth."""

    job_id: int
    message: str
    metadata: dict[str, str] = {}


class Verified(_Message, frozen=True, kw_only=True):
    """An output was looked at."""

    job_id: int
    violation: str = ""
    """What is wrong with it; empty: nothing."""


class Overrun(_Message, frozen=True, kw_only=True):
    """The job took longer than it may, and its worker was ended."""

    job_id: int


class Died(_Message, frozen=True, kw_only=True):
    """The job's worker ended over it."""

    job_id: int
    how: str


Job = Check | Verify
Finding = Planned | Refused | TooComplex | Verified
Answer = Finding | Overrun | Died
FromChecker = Answer | Loaded
