"""Constraints as they come over the wire, and what is remembered of them."""

import pytest
from antiphon.v1.types_pb2 import Choice, Constraint, JsonObject
from google.protobuf.empty_pb2 import Empty

from antiphon_engine.api.errors import AntiphonError, ErrorReason, InvalidRequest
from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_server.constraints.check_messages import Refused
from antiphon_server.constraints.checked_cache import CheckedCache
from antiphon_server.constraints.reading import (
    ConstraintLimits,
    check_constraint,
    read_constraint,
)
from antiphon_server.constraints.request import (
    CheckedConstraint,
    ConstraintKind,
    ConstraintRequest,
)
from antiphon_server.validation_fields import Violations

LIMITS = ConstraintLimits(max_size_bytes=20, max_choices=3, max_blank_characters=5)


def check(constraint: Constraint) -> None:
    violations = Violations()
    check_constraint(constraint, limits=LIMITS, path="c", violations=violations)
    violations.raise_if_any()


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        (Constraint(), "c"),
        (Constraint(json_schema=""), "c.json_schema"),
        (Constraint(regex=""), "c.regex"),
        (Constraint(choice=Choice()), "c.choice.options"),
        (Constraint(choice=Choice(options=["a", ""])), "c.choice.options[1]"),
        (Constraint(regex="a", compact_json=True), "c.compact_json"),
        (Constraint(none=Empty(), compact_json=False), "c.compact_json"),
    ],
)
def test_what_shows_from_outside_is_named(constraint: Constraint, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(constraint)

    assert [each.field for each in caught.value.violations] == [field]


@pytest.mark.parametrize(
    ("constraint", "limit"),
    [
        (Constraint(ebnf="é" * 11), ("limit_bytes", "20")),
        (Constraint(choice=Choice(options=["a" * 10, "b" * 11])), ("limit_bytes", "20")),
        (Constraint(choice=Choice(options=["a", "b", "c", "d"])), ("limit_choices", "3")),
    ],
)
def test_what_is_too_large_is_refused_by_its_limit(
    constraint: Constraint, limit: tuple[str, str]
) -> None:
    with pytest.raises(AntiphonError) as caught:
        check(constraint)

    assert caught.value.reason is ErrorReason.CONSTRAINT_TOO_COMPLEX
    assert limit in caught.value.metadata.items()


def test_white_space_is_for_json_and_can_be_forbidden() -> None:
    def blank(constraint: Constraint) -> int | None:
        check(constraint)
        request = read_constraint(constraint, limits=LIMITS)
        return request.max_blank if request else None

    assert blank(Constraint(json_schema="{}")) == 5
    assert blank(Constraint(json_object=JsonObject(), compact_json=False)) == 5
    assert blank(Constraint(json_object=JsonObject(), compact_json=True)) == 0
    assert blank(Constraint(regex="a b")) == 0
    assert blank(Constraint(none=Empty())) is None


def request(text: str) -> ConstraintRequest:
    return ConstraintRequest(kind=ConstraintKind.REGEX, text=text)


def checked(text: str, size: int = 10) -> CheckedConstraint:
    grammar = Grammar(backend=GrammarBackend.LLGUIDANCE, text="g" * size)
    return CheckedConstraint(request=request(text), grammar=grammar, compile_ns=1)


def test_what_was_not_asked_for_longest_goes_first() -> None:
    cache = CheckedCache(max_bytes=2500)
    for text in "abc":
        cache.add(request(text), checked(text))
    assert cache.find(request("a"))

    cache.add(request("d"), checked("d"))

    assert [bool(cache.find(request(text))) for text in "abcd"] == [True, False, True, True]
    assert cache.num_bytes <= 2500


def test_what_is_larger_than_all_is_not_kept_and_costs_nobody_a_place() -> None:
    cache = CheckedCache(max_bytes=2500)
    cache.add(request("a"), checked("a"))

    cache.add(request("b"), checked("b", size=3000))

    assert cache.find(request("a"))
    assert cache.find(request("b")) is None


def test_a_refusal_can_take_the_place_of_what_was_known() -> None:
    cache = CheckedCache(max_bytes=2500)
    cache.add(request("a"), checked("a"))
    cache.add(request("a"), Refused(job_id=1, path="", message="no"))

    assert isinstance(cache.find(request("a")), Refused)
    assert cache.num_bytes < 300


def test_constraints_differ_in_all_that_they_say() -> None:
    one = request("a")

    assert one.digest() == request("a").digest()
    assert one.digest() != ConstraintRequest(kind=ConstraintKind.EBNF, text="a").digest()
    blank = ConstraintRequest(kind=ConstraintKind.REGEX, text="a", max_blank=1)
    assert one.digest() != blank.digest()
