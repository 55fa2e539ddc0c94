"""What is taken is enforced: by the official JSON Schema suite, and by cases of our own."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from support.json_spellings import Json, odd_texts, reordered_texts, valid_texts
from support.schema_attack import Refused, grammar_of
from support.schema_cases import ASSERTED_FORMATS, Case, read_maskbench, read_suite

OWN_CASES = Path(__file__).parents[1] / "data" / "grammar_cases.jsonl"
SUITE = Path(__file__).parents[3] / "shared/data/json_schema_test_suite/tests/draft2020-12"
# Valid and kept out, each by a rule that is simpler and stricter than the format's.
KEPT_OUT = (
    ":60",  # a leap second in another time zone than UTC: the offset would decide the minute
    "xn--",  # the encoded form of a name in other scripts, whose insides have rules of their own
    "δοκιμή",  # quoted local parts of other scripts
    "@example.com",  # local parts of characters that are no letters
    "?q=",  # characters of private use in a query
)


def is_kept_out(wrong: str) -> bool:
    """Returns whether a format, or the class of blanks, is known to be stricter in this."""
    if not wrong.endswith("valid and not producible"):
        return False
    if wrong.startswith("optional/ecmascript-regex"):
        return "\ufeff" in wrong  # a blank to ECMA-262 alone
    return wrong.startswith(ASSERTED_FORMATS) and any(text in wrong for text in KEPT_OUT)


def wrongs(case: Case) -> Iterator[str]:
    """Yields what is wrong about a case. Raises Refused."""
    _, texts = grammar_of(case.schema)
    for instance in case.instances:
        written = valid_texts(instance.value, case.schema)
        if instance.is_valid:
            if not any(map(texts.has, (*written, *reordered_texts(instance.value)))):
                yield f"{case.name}: {written[0]} is valid and not producible"
            continue
        for text in (*written, *odd_texts(instance.value, case.schema)):
            if texts.has(text):
                yield f"{case.name}: {text} is invalid and producible"


@pytest.mark.parametrize("case", list(read_maskbench(OWN_CASES)), ids=lambda case: case.name)
def test_own_cases_are_taken_and_enforced(case: Case):
    if any(instance.is_valid for instance in case.instances):
        assert list(wrongs(case)) == []
    else:
        with pytest.raises(Refused):
            grammar_of(case.schema)


def leads_somewhere(path: str | None, schema: Json) -> bool:
    """Returns whether a refusal tells a place that the schema has."""
    for word in (path or "").removeprefix("#").split("/")[1:]:
        name = unquote(word).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isdigit() and int(name) < len(schema):
            schema = schema[int(name)]
        elif isinstance(schema, dict) and name in schema:
            schema = schema[name]
        else:
            return False
    return path is not None


def test_the_official_suite_is_enforced_or_refused_by_place():
    if not SUITE.is_dir():
        pytest.skip(f"the official JSON Schema suite is not at {SUITE}")
    passing, refused, total, wrong = Counter[str](), Counter[str](), Counter[str](), list[str]()
    for case in read_suite(SUITE):
        total[case.group] += 1
        try:
            its_wrongs = list(wrongs(case))
        except Refused as refusal:
            refused[case.group] += 1
            if not leads_somewhere(refusal.path, case.schema):
                wrong.append(f"{case.name}: refused at {refusal.path}: {refusal}")
        else:
            wrong += its_wrongs
            passing[case.group] += not its_wrongs
    wrong = [each for each in wrong if not is_kept_out(each)]
    for group, count in total.items():
        print(f"{group}: {passing[group]} of {count} enforced, {refused[group]} refused")
    print(f"all: {passing.total()} of {total.total()} enforced, {refused.total()} refused")
    assert wrong == []
