"""Structural tags: free text, fixed texts, expressions and JSON, put together by a JSON document.

`plan.py` is the entry. `document.py` reads the document into the values of `formats.py` and refuses
by JSON path what isn't known. `parts.py` makes of them a *regular expression whose letters are
characters and whole JSON values*. All in it that has no value inside is one regular language, so
`prefixes.py` takes any part apart into ways to go on: a regular language, then a value, then the
part that is left. Each way becomes one rule with one terminal (`lark.py`). The library takes the
longest terminal that matches, so `boundaries.py` proves first that nothing that stands in front of
a value goes on with what the value begins with; what can't be proven is refused.

`recognition.py` looks at finished outputs and shares nothing with this but the document.
"""

from antiphon_server.constraints.structural_tags.plan import plan_tag

__all__ = ["plan_tag"]
