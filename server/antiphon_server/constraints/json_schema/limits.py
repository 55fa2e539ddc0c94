"""How much a schema may ask for before it is refused as too complex."""

from dataclasses import dataclass

from antiphon_server.constraints.refusals import ConstraintTooComplexError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """Limits of one plan. They count, so the same schema always has the same answer."""

    max_depth: int = 64
    """Levels of nesting in the schema's text."""
    max_cases: int = 512
    """Ways to satisfy one place of the schema, after its unions are multiplied out."""
    max_work: int = 60_000
    """Steps of working the schema out, all places together."""
    max_rules: int = 20_000
    """Rules of the grammar that comes out."""
    max_grammar_bytes: int = 4 << 20
    """Size of the grammar's text."""


class Budget:
    """Counts the steps of one plan."""

    def __init__(self, limits: PlanLimits) -> None:
        self.limits = limits
        self._work_left = limits.max_work

    def spend(self, path: str, steps: int = 1) -> None:
        """Counts steps.

        Raises:
            ConstraintTooComplexError: there have been too many.
        """
        self._work_left -= steps
        if self._work_left < 0:
            raise ConstraintTooComplexError(
                f"the schema takes more than {self.limits.max_work} steps to work out, the last of "
                f"them at {path or '#'}; use fewer or simpler unions and negations",
                limit=str(self.limits.max_work),
            )

    def check_cases(self, path: str, cases: int) -> None:
        """Checks the number of ways to satisfy one place.

        Raises:
            ConstraintTooComplexError: there are too many.
        """
        if cases > self.limits.max_cases:
            raise ConstraintTooComplexError(
                f"{path or '#'} can be satisfied in more than {self.limits.max_cases} ways once "
                "its unions are multiplied out; use fewer unions beside each other",
                limit=str(self.limits.max_cases),
            )
