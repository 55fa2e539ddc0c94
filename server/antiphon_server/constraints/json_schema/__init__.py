"""JSON Schema as a grammar: parsed, references resolved, normalised, and refused where inexact.

`plan.py` is the entry. A schema becomes *goals*: sets of subschemas that hold at one place. Each
goal is worked out into *shapes*, one for every way to satisfy it with a value of one type. Shapes
become rules and regular expressions of one grammar. Nothing is approximated on the way: whatever
has no exact counterpart is refused with its JSON pointer.
"""

from antiphon_server.constraints.json_schema.limits import PlanLimits
from antiphon_server.constraints.json_schema.plan import plan_schema

__all__ = ["PlanLimits", "plan_schema"]
