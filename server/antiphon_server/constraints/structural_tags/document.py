"""Reads a structural tag: the grammar library's JSON, of this day or of its older form."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from antiphon_server.constraints.json_schema.document import Json, parse_document, refuse_halves
from antiphon_server.constraints.json_schema.limits import PlanLimits
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)
from antiphon_server.constraints.structural_tags.fields import Fields, refuse, said, text_of
from antiphon_server.constraints.structural_tags.formats import (
    Dispatch,
    Expression,
    FixedText,
    Format,
    FreeText,
    InARow,
    JsonValue,
    OneOf,
    Repeated,
    Separated,
    Tag,
)

MAX_FORMATS: Final = 2048
"""Formats in one document."""
MAX_REPEAT: Final = 10_000
MAX_CHARS: Final = 10_000
"""Of free text that is counted. Each count is a state for the library, which has not many more."""
_MAX_COUNT: Final = (1 << 31) - 1
_TOKENS: Final = "outputs are held to texts here, however they are split into tokens"
_NOT_ENFORCED: Final = {
    "grammar": "a grammar can't be enforced inside of a tag; use regex or json_schema, or the "
    "constraint ebnf for the whole output",
    "qwen_xml_parameter": "only JSON can be enforced; use json_schema",
    "token": f"tokens can't be enforced: {_TOKENS}; use const_string",
    "exclude_token": f"tokens can't be enforced: {_TOKENS}; use any_text with excludes",
    "any_tokens": f"tokens can't be enforced: {_TOKENS}; use any_text",
    "token_triggered_tags": f"tokens can't be enforced: {_TOKENS}; use triggered_tags",
    "token_dispatch": f"tokens can't be enforced: {_TOKENS}; use dispatch",
}

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


def read_tag(text: str, limits: PlanLimits) -> Format:
    """Returns what a structural tag asks for.

    Raises:
        UnsupportedConstraintError: it is none, or has what can't be enforced; names the path.
        ConstraintTooComplexError: it nests too deeply, or has too many parts.
    """
    fields = Fields(parse_document(text, limits, noun="the structural tag"), "")
    reader = _Reader()
    kind = fields.given("type")
    if kind is not None and kind != "structural_tag":
        refuse("type", f"must be 'structural_tag', and is {said(kind)}")
    if fields.has("structures"):
        found = reader.older_form(fields)
    else:
        found = reader.format(fields.needed("format"), "format")
    fields.finish("a structural tag")
    return found


class _Reader:
    def __init__(self) -> None:
        self._num_formats = 0
        self._ends: tuple[str, ...] = ()
        """Of the innermost tag: free text stops there."""
        self._readers: dict[str, Callable[[Fields], Format]] = {
            "const_string": self._fixed_text,
            "json_schema": self._json_value,
            "any_text": self._free_text,
            "regex": self._expression,
            "sequence": self._in_a_row,
            "or": self._one_of,
            "optional": self._optional,
            "star": self._star,
            "plus": self._plus,
            "repeat": self._repeat,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._separated,
            "dispatch": self._dispatch,
        }

    def format(self, value: Json, path: str) -> Format:
        """Reads a format of any type."""
        fields = Fields(value, path)
        kind = fields.needed("type")
        if isinstance(kind, str) and kind in _NOT_ENFORCED:
            refuse(fields.at("type"), f"{said(kind)}: {_NOT_ENFORCED[kind]}")
        if not isinstance(kind, str) or kind not in self._readers:
            known = ", ".join(self._readers)
            refuse(fields.at("type"), f"there is no format {said(kind)}; known are {known}")
        return self._read(fields, kind)

    def older_form(self, fields: Fields) -> Format:
        """Reads structures and their triggers."""
        tags = []
        for item, path in fields.items("structures"):
            self._count()
            inner = Fields(item, path)
            schema = inner.needed("schema")
            text = schema if isinstance(schema, str) else _schema_text(schema, inner.at("schema"))
            tag = Tag(
                path=path,
                begin=inner.text("begin"),
                content=JsonValue(path=inner.at("schema"), schema=text),
                ends=(inner.text("end"),),
            )
            inner.finish("a structure")
            tags.append(tag)
        return self._of_triggers(fields, tags, loops=True, is_needed=False)

    def _read(self, fields: Fields, kind: str) -> Format:
        self._count()
        found = self._readers[kind](fields)
        fields.finish(kind)
        return found

    def _count(self) -> None:
        self._num_formats += 1
        if self._num_formats > MAX_FORMATS:
            raise ConstraintTooComplexError(
                f"the structural tag has more than {MAX_FORMATS} formats; use fewer",
                limit=str(MAX_FORMATS),
            )

    def _fixed_text(self, fields: Fields) -> FixedText:
        return FixedText(path=fields.path, text=fields.text("value"))

    def _json_value(self, fields: Fields) -> JsonValue:
        path = fields.at("json_schema")
        schema = _schema_text(fields.needed("json_schema"), path)
        style = fields.given("style")
        if style not in (None, "json"):
            refuse(fields.at("style"), f"only 'json' can be enforced, and not {said(style)}")
        if fields.flag("any_order", default=False):
            refuse(
                fields.at("any_order"),
                "members can't be let come in any order, since required ones could be missing then",
            )
        if fields.texts("excludes"):
            refuse(fields.at("excludes"), "can't be enforced in JSON; use pattern in the schema")
        max_blank = fields.count("max_whitespace_cnt", low=1, high=_MAX_COUNT)
        return JsonValue(path=path, schema=schema, max_blank=max_blank)

    def _free_text(self, fields: Fields) -> FreeText:
        if fields.given("max_tokens") is not None:
            refuse(
                fields.at("max_tokens"), "tokens can't be counted inside of a tag; use max_chars"
            )
        excludes = fields.texts("excludes")
        return FreeText(
            path=fields.path,
            excludes=(*excludes, *self._ends),
            max_chars=fields.count("max_chars", low=0, high=MAX_CHARS),
        )

    def _expression(self, fields: Fields) -> Expression:
        pattern = fields.text("pattern", may_be_empty=False)
        return Expression(path=fields.at("pattern"), pattern=pattern)

    def _in_a_row(self, fields: Fields) -> InARow:
        return InARow(path=fields.path, elements=self._elements(fields))

    def _one_of(self, fields: Fields) -> OneOf:
        return OneOf(path=fields.path, elements=self._elements(fields))

    def _elements(self, fields: Fields) -> tuple[Format, ...]:
        return tuple(self.format(item, path) for item, path in fields.items("elements"))

    def _optional(self, fields: Fields) -> Repeated:
        return self._repeated(fields, 0, 1)

    def _star(self, fields: Fields) -> Repeated:
        return self._repeated(fields, 0, None)

    def _plus(self, fields: Fields) -> Repeated:
        return self._repeated(fields, 1, None)

    def _repeat(self, fields: Fields) -> Repeated:
        for name in ("min", "max"):
            fields.needed(name)
        low = fields.count("min", low=0, high=MAX_REPEAT)
        high = fields.count("max", low=-1, high=MAX_REPEAT)
        if low is None or high is None:
            refuse(fields.path, "min and max must be numbers; a max of -1 is none")
        if 0 <= high < low:
            refuse(fields.at("max"), f"is {high}, and min is {low}")
        return self._repeated(fields, low, None if high < 0 else high)

    def _repeated(self, fields: Fields, low: int, high: int | None) -> Repeated:
        content = self.format(fields.needed("content"), fields.at("content"))
        return Repeated(path=fields.path, content=content, low=low, high=high)

    def _tag(self, fields: Fields) -> Tag:
        begin = self._mark(fields, "begin")
        end = fields.given("end")
        if isinstance(end, list):
            ends = tuple(text_of(item, path) for item, path in fields.items("end"))
        else:
            ends = (self._mark(fields, "end"),)
        outer, self._ends = self._ends, tuple(filter(None, ends))
        content = self.format(fields.needed("content"), fields.at("content"))
        self._ends = outer
        return Tag(path=fields.path, begin=begin, content=content, ends=tuple(dict.fromkeys(ends)))

    def _mark(self, fields: Fields, name: str) -> str:
        if isinstance(fields.needed(name), dict):
            refuse(fields.at(name), f"{_NOT_ENFORCED['token']}, or a string here")
        return fields.text(name)

    def _tags(self, fields: Fields) -> list[Tag]:
        """Reads a list of tags, which need not say that they are."""
        tags = []
        for item, path in fields.items("tags"):
            inner = Fields(item, path)
            kind = inner.given("type")
            if inner.has("type") and kind != "tag":
                refuse(inner.at("type"), f"must be 'tag', and is {said(kind)}")
            self._count()
            tags.append(self._tag(inner))
            inner.finish("tag")
        return tags

    def _triggered_tags(self, fields: Fields) -> Format:
        is_needed = fields.flag("at_least_one", default=False)
        loops = not fields.flag("stop_after_first", default=False)
        tags = self._tags(fields)
        return self._of_triggers(fields, tags, loops=loops, is_needed=is_needed)

    def _of_triggers(
        self, fields: Fields, tags: list[Tag], *, loops: bool, is_needed: bool
    ) -> Format:
        triggers: dict[str, str] = {}
        for item, path in fields.items("triggers"):
            trigger = text_of(item, path, may_be_empty=False)
            if trigger in triggers:
                refuse(path, f"{said(trigger)} is there twice")
            triggers[trigger] = path
        excludes = (*fields.texts("excludes"), *self._ends)
        _check_triggers(triggers, excludes)
        by_trigger: dict[str, list[Format]] = {trigger: [] for trigger in triggers}
        for tag in tags:
            own = next((each for each in triggers if tag.begin.startswith(each)), None)
            if own is None:
                refuse(f"{tag.path}.begin", f"{said(tag.begin)} begins with none of the triggers")
            by_trigger[own].append(replace(tag, begin=tag.begin.removeprefix(own)))
        for trigger, found in by_trigger.items():
            if not found:
                refuse(triggers[trigger], f"no tag begins with {said(trigger)}")
        whole = OneOf(path=fields.path, elements=tuple(tags))
        if is_needed and not loops:
            return whole
        return Dispatch(
            path=fields.path,
            triggers=tuple(
                (trigger, OneOf(path=fields.path, elements=tuple(found)))
                for trigger, found in by_trigger.items()
            ),
            loops=loops,
            excludes=excludes,
            first=whole if is_needed else None,
        )

    def _separated(self, fields: Fields) -> Separated:
        return Separated(
            path=fields.path,
            elements=tuple(self._tags(fields)),
            separator=fields.text("separator"),
            low=int(fields.flag("at_least_one", default=False)),
            high=1 if fields.flag("stop_after_first", default=False) else None,
        )

    def _dispatch(self, fields: Fields) -> Dispatch:
        rules: list[tuple[str, Format]] = []
        paths: dict[str, str] = {}
        for item, path in fields.items("rules"):
            if not isinstance(item, list) or len(item) != len(("pattern", "format")):
                refuse(path, "must be a list of a pattern and a format")
            pattern = text_of(item[0], f"{path}[0]", may_be_empty=False)
            if pattern in paths:
                refuse(f"{path}[0]", f"{said(pattern)} has a rule already; join them with or")
            paths[pattern] = f"{path}[0]"
            rules.append((pattern, self.format(item[1], f"{path}[1]")))
        excludes = fields.texts("excludes")
        _check_triggers(paths, excludes)
        return Dispatch(
            path=fields.path,
            triggers=tuple(rules),
            loops=fields.flag("loop", default=True),
            excludes=excludes,
        )


def _schema_text(schema: Json, path: str) -> str:
    if not isinstance(schema, dict | bool):
        refuse(path, f"must be a schema, and is {said(schema)}")
    try:
        refuse_halves(schema)
    except UnsupportedConstraintError as error:
        refuse(f"{path}#{error.path}", error.message)
    return _ENCODER.encode(schema).decode()


def _check_triggers(triggers: dict[str, str], excludes: tuple[str, ...]) -> None:
    """Refuses triggers that could never come, or not be told from each other."""
    for trigger, path in triggers.items():
        for other in triggers:
            if other != trigger and other in trigger:
                refuse(path, f"{said(trigger)} has the trigger {said(other)} inside")
        for excluded in excludes:
            if excluded in trigger:
                refuse(path, f"{said(trigger)} has {said(excluded)} inside, which is excluded")
