"""JSON Schema as a grammar: parsed, references resolved, normalised, and refused where inexact.

`plan.py` is the entry. A schema becomes *goals*: sets of subschemas that hold at one place. Each
goal is worked out into *shapes*, one for every way to satisfy it with a value of one type. Shapes
become rules and regular expressions of one grammar. Nothing is approximated on the way: whatever
has no exact counterpart is refused with its JSON pointer.

What comes out, besides satisfying the schema:

- Members that the schema names stand in the order in which it names them, others behind them; one
  that a negation asks for comes last, so that no equal name can follow and overrule it. A name
  that the schema names is never there twice.
- A character of a string has one spelling: itself, or the shortest escape where it needs one.
- A number that something is said about has no exponent; one of an integer type has no point.
- White space is a bounded run before what it separates, and none behind the end.

`format` is enforced, unless `$schema` declares draft 2019-09 or 2020-12, where it is a note to
readers. Names of formats that no draft defines mean nothing anywhere.
"""

from antiphon_server.constraints.json_schema.limits import PlanLimits
from antiphon_server.constraints.json_schema.plan import plan_schema

__all__ = ["PlanLimits", "plan_schema"]
