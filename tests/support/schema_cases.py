"""Schemas with instances that satisfy them or don't, from files in either of two public formats.

MaskBench: lines of JSON, each `{"name", "schema", "tests": [{"valid", "data"}]}`. The official JSON
Schema suite: a directory of files, each a list of `{"description", "schema", "tests"}`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from support.json_spellings import Json, Spelling, write

ASSERTED_FORMATS = "optional/format/"
"""Groups of the suite in which formats are more than notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A value, and whether its schema says that it is valid."""

    is_valid: bool
    value: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A schema and what is known of it."""

    name: str
    group: str
    """What shares are told by: a keyword's file, or a source of schemas."""
    schema: Json
    instances: tuple[Instance, ...]

    @property
    def schema_text(self) -> str:
        """The schema as a caller writes it."""
        return write(self.schema, Spelling())


def read_maskbench(path: Path) -> Iterator[Case]:
    """Yields the cases of a file of lines."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                read = _parse(line)
                assert isinstance(read, dict)
                name = str(read["name"])
                yield _case(name, name.partition("_")[0].partition("---")[0], read)


def read_suite(directory: Path) -> Iterator[Case]:
    """Yields the cases of all files below a directory, by name.

    Those that say what formats mean come as if formats had to hold.
    """
    for path in sorted(directory.rglob("*.json")):
        group = path.relative_to(directory).with_suffix("").as_posix()
        read = _parse(path.read_text(encoding="utf-8"))
        assert isinstance(read, list)
        for number, each in enumerate(read):
            assert isinstance(each, dict)
            case = _case(f"{group}:{number} {each['description']}", group, each)
            yield _as_asserted(case) if group.startswith(ASSERTED_FORMATS) else case


def _as_asserted(case: Case) -> Case:
    """Returns a case in which formats must hold: here they do where no recent draft is named."""
    assert isinstance(case.schema, dict)
    schema = {keyword: case.schema[keyword] for keyword in case.schema if keyword != "$schema"}
    return replace(case, schema=schema)


def _case(name: str, group: str, read: dict[str, Json]) -> Case:
    tests = read["tests"]
    assert isinstance(tests, list)
    instances = tuple(
        Instance(is_valid=bool(test["valid"]), value=test["data"])
        for test in tests
        if isinstance(test, dict)
    )
    return Case(name=name, group=group, schema=read["schema"], instances=instances)


def _parse(text: str) -> Json:
    return json.loads(text, parse_float=Decimal)
