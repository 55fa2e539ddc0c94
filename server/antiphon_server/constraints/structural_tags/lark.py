"""Writes a structural tag as one Lark grammar."""

from collections.abc import Mapping

from antiphon_server.constraints.json_schema.lark_rules import LarkRules
from antiphon_server.constraints.languages.lark_text import plain_text
from antiphon_server.constraints.languages.terms import EMPTY, NOTHING, Term, both, of_length
from antiphon_server.constraints.structural_tags.parts import NO_TEXT, Part, ValueSource
from antiphon_server.constraints.structural_tags.prefixes import Taker, Way


def write_grammar(start: Part, taker: Taker, values: Mapping[ValueSource, LarkRules]) -> str:
    """Returns the grammar of a part's texts.

    REQUIRES: the part's boundaries were checked as the taker takes it apart.
    """
    writer = _Writer(taker, values)
    return writer.write(start)


class _Writer:
    def __init__(self, taker: Taker, values: Mapping[ValueSource, LarkRules]) -> None:
        self._taker = taker
        self._values = values
        self._terminals: dict[Term, str] = {}
        self._rules: dict[Part, str] = {}
        self._waiting: list[Part] = []

    def write(self, start: Part) -> str:
        lines = [f"start: {self._rule_of(start)}"]
        while self._waiting:
            part = self._waiting.pop()
            lines.append(f"{self._rules[part]}: {' | '.join(self._options(part))}")
        lines += [f"{name}: {plain_text(term)}" for term, name in self._terminals.items()]
        lines += [rules.text for rules in self._values.values()]
        return "\n".join(lines) + "\n"

    def _rule_of(self, part: Part) -> str:
        if part not in self._rules:
            self._rules[part] = f"s{len(self._rules)}"
            self._waiting.append(part)
        return self._rules[part]

    def _options(self, part: Part) -> list[str]:
        taken = self._taker.take(part)
        written = self._texts(taken.whole)
        for way in taken.ways:
            written += [
                " ".join(filter(None, (text, self._behind(way))))
                for text in self._texts(way.before)
            ]
        return [each or '""' for each in written]

    def _texts(self, language: Term) -> list[str]:
        """Parts of a rule that together are a language; an empty one: the empty text."""
        # A terminal is never empty: the library would not see that it may be left out.
        written = [""] if language.nullable else []
        some = both(language, of_length(1, None)) if language.nullable else language
        if some not in (NOTHING, EMPTY):
            written.append(self._terminal(some))
        return written

    def _terminal(self, language: Term) -> str:
        if language not in self._terminals:
            self._terminals[language] = f"S{len(self._terminals)}"
        return self._terminals[language]

    def _behind(self, way: Way) -> str:
        value = "" if way.value is None else self._values[way.value].start
        return " ".join(
            filter(None, (value, "" if way.behind == NO_TEXT else self._rule_of(way.behind)))
        )
