"""Regular expressions as languages."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.constraints.languages.derivatives import finite_texts, is_empty, matches
from antiphon_server.constraints.languages.pattern_syntax import PatternError
from antiphon_server.constraints.languages.patterns import matched, searched
from antiphon_server.constraints.languages.terms import (
    both,
    complement,
    literals,
    of_length,
)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("^(?=.*[A-Z])[a-zA-Z]{2,4}$", ["aB", "Zzzz"], ["ab", "ABCDE"]),
        ("^(?!root$)[a-z]+$", ["rooted", "user"], ["root"]),
        ("[0-9]{3}", ["123", "x1234y"], ["12"]),
        (r"\bend\b", ["end", "the end."], ["bend", "ends"]),
        (r"^\d+\s?(kg|g)$", ["5 kg", "12g"], ["5  kg", "kg"]),
        (r"^[\u0430-\u044f]+$", ["мир"], ["mir", ""]),
        ("^(|x)$", ["", "x"], ["xx"]),
        (r"^a|b$", ["axx", "xxb"], ["xa", "bx"]),
        (r"^[^\]\-x]+$", ["ab"], ["a-", "x", "]"]),
        (r"^\p{Lu}\p{Ll}*$", ["Äpfel"], ["äpfel"]),
        (r"^.$", ["é", "😀"], ["\n", "ab"]),
        (r"^\u{1F600}$", ["😀"], ["x"]),
        (r"^\ud83d\ude00$", ["😀"], ["x"]),
        ("(^|,)x(,|$)", ["x", "a,x,b", "x,b"], ["ax", "xb"]),
    ],
)
def test_a_pattern_is_searched_for(pattern: str, inside: list[str], outside: list[str]):
    language = searched(pattern)
    assert [text for text in inside if not matches(language, text)] == []
    assert [text for text in outside if matches(language, text)] == []


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("(?<=a)b", 0),
        (r"^(a|b)\1$", 6),
        (r"(?<n>a)\k<n>", 7),
        ("a**", 2),
        ("(a", 0),
        ("a)", 1),
        ("[a", 0),
        ("*a", 0),
        ("a{3,1}", 1),
        ("a{1,9999999}", 1),
        ("x{,3}", 1),
        (r"\q", 0),
        (r"(x$)+y", 0),
        (r"\p{Klingon}", 0),
    ],
)
def test_what_can_not_be_enforced_is_refused_with_its_position(pattern: str, position: int):
    with pytest.raises(PatternError) as refusal:
        searched(pattern)
    assert refusal.value.position == position


def test_a_whole_output_is_matched_from_end_to_end():
    assert matches(matched("[0-9]+"), "12")
    assert not matches(matched("[0-9]+"), "x12")


def test_contradictions_are_seen():
    short = both(searched("^[a-z]{5}$"), of_length(0, 4))
    assert is_empty(short, max_states=100) is True
    assert is_empty(both(searched("^[a-z]{3}$"), of_length(0, 4)), max_states=100) is False


def test_the_texts_of_a_small_language_are_listed():
    assert finite_texts(searched("^(on|off)[12]?$"), 10) == {
        "on", "off", "on1", "off1", "on2", "off2",
    }  # fmt: skip
    assert finite_texts(searched("^x+$"), 10) is None


_ATOMS = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", "(a|bc)", "(ab)", r"\w", "(?:)", "c"])
_QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "*?"])
_PIECES = st.lists(st.tuples(_ATOMS, _QUANTIFIERS).map("".join), max_size=4).map("".join)
_PATTERNS = st.tuples(
    st.sampled_from(["", "^", "(?=a)", "(?!ab)"]),
    _PIECES,
    st.sampled_from(["", "|", "|^", "$|"]),
    _PIECES,
    st.sampled_from(["", "$"]),
).map("".join)


@settings(deadline=None, max_examples=80)
@given(_PATTERNS, st.lists(st.text("abc-", max_size=6), min_size=5, max_size=5))
def test_a_pattern_matches_what_another_implementation_finds(pattern: str, texts: list[str]):
    language = searched(pattern)
    whole = matched(f"(?:{pattern})") if "^" not in pattern and "$" not in pattern else None
    for text in texts:
        assert matches(language, text) == bool(re.search(pattern, text)), text
        assert matches(complement(language), text) != matches(language, text)
        if whole is not None:
            assert matches(whole, text) == bool(re.fullmatch(pattern, text)), text


@given(st.sets(st.text("abc", max_size=5), max_size=8), st.text("abc", max_size=5))
def test_a_set_of_texts_has_those_and_no_other(texts: set[str], text: str):
    language = literals(texts)
    assert matches(language, text) == (text in texts)
    assert finite_texts(language, 8) == texts
