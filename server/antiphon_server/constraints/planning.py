"""From a constraint to the grammar that enforces it exactly, tried with the engine's backends."""

import re
from dataclasses import dataclass
from typing import Final, Protocol

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_server.constraints.choices import plan_choices
from antiphon_server.constraints.ebnf import check_rules_end
from antiphon_server.constraints.expressions import plan_expression
from antiphon_server.constraints.json_schema import PlanLimits, plan_schema
from antiphon_server.constraints.json_schema.lark_rules import LarkRules
from antiphon_server.constraints.json_schema.plan import schema_rules
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)
from antiphon_server.constraints.request import ConstraintKind, ConstraintRequest
from antiphon_server.constraints.structural_tags import plan_tag
from antiphon_server.constraints.tool_calls import plan_calls

_ANY_OBJECT: Final = '{"type":"object"}'
_BACKEND_PLACE: Final = re.compile(r"EBNF \w+ error at (line \d+, column \d+): (.*)", re.DOTALL)


class Matcher(Protocol):
    """Where an output stands in its grammar, as the engine's backends have it."""

    def accept(self, token_id: int) -> None:
        """Goes on behind a token. Raises AntiphonError: the grammar doesn't allow it here."""

    def may_end(self) -> bool:
        """Returns whether what was accepted is a whole of the grammar."""


class Compiled(Protocol):
    """A grammar that was compiled."""

    def matcher(self) -> Matcher:
        """Returns a matcher at the grammar's beginning."""


class Compiler(Protocol):
    """The engine's backends."""

    def compile(self, grammar: Grammar) -> Compiled:
        """Compiles a grammar with the backend that it names. Raises AntiphonError: it can't."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans constraints of all kinds."""

    compiler: Compiler
    limits: PlanLimits

    def plan(self, request: ConstraintRequest) -> Grammar:
        """Returns the grammar of exactly the texts that satisfy a constraint.

        Raises:
            UnsupportedConstraintError: there is none, or it can't be enforced.
            ConstraintTooComplexError: it is past a limit.
        """
        grammar = self._grammar_of(request)
        size_bytes = len(grammar.text.encode())
        if size_bytes > self.limits.max_grammar_bytes:
            raise ConstraintTooComplexError(
                f"its grammar has {size_bytes} bytes; the limit is "
                f"{self.limits.max_grammar_bytes} bytes; make it simpler",
                limit_bytes=str(self.limits.max_grammar_bytes),
            )
        try:
            self.compiler.compile(grammar)
        except AntiphonError as error:
            raise _why_it_does_not_compile(error) from error
        return grammar

    def _grammar_of(  # noqa: PLR0911 - one for each kind
        self, request: ConstraintRequest
    ) -> Grammar:
        match request.kind:
            case ConstraintKind.JSON_SCHEMA:
                return plan_schema(request.text, max_blank=request.max_blank, limits=self.limits)
            case ConstraintKind.JSON_OBJECT:
                return plan_schema(_ANY_OBJECT, max_blank=request.max_blank, limits=self.limits)
            case ConstraintKind.REGEX:
                return plan_expression(request.text)
            case ConstraintKind.CHOICE:
                return plan_choices(request.options)
            case ConstraintKind.EBNF:
                check_rules_end(request.text, max_depth=self.limits.max_depth)
                return Grammar(backend=GrammarBackend.XGRAMMAR, text=request.text)
            case ConstraintKind.TOOLS:
                return plan_calls(request.text, self._arguments_of)
            case ConstraintKind.STRUCTURAL_TAG:
                return plan_tag(request.text, max_blank=request.max_blank, limits=self.limits)

    def _arguments_of(self, schema: str, prefix: str, max_blank: int) -> LarkRules:
        return schema_rules(schema, prefix=prefix, max_blank=max_blank, limits=self.limits)


def _why_it_does_not_compile(error: AntiphonError) -> Exception:
    if error.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX:
        return ConstraintTooComplexError(error.message)
    if place := _BACKEND_PLACE.search(error.message):
        return UnsupportedConstraintError(place[1], place[2])
    return UnsupportedConstraintError("", error.message)
