"""Rules of a grammar that an output could never leave, and the places of other faults."""

import pytest

from antiphon_server.constraints.ebnf import check_rules_end
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a"',
        'root ::= "a" | "b" root',
        'root ::= ("x" more)? "."\nmore ::= [a-z]{2,} more?',
        '# all\nroot ::= list # so\nlist ::= "[" (item ("," item)*)? "]"\nitem ::= "1" | list',
        'root ::= ""',
        'root ::= "\\"" [^"\\]\\\\]* "#"',
        'root ::= a-1.b_c\na-1.b_c ::= "x"',
        'root ::= "a"\nunused ::= "b"',
        'root ::= one{0,4}\none ::=\n  "1"\n  | "2"',
    ],
)
def test_grammars_whose_rules_end_are_taken(text: str) -> None:
    check_rules_end(text, max_depth=8)


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ('root ::= root "a"', "line 1, column 1", "'root' has no end"),
        ('root ::= "a" | b\nb ::= "b" b', "line 2, column 1", "'b' has no end"),
        ('root ::= "a" b*\nb ::= "b" c\nc ::= b', "line 2, column 1", "'b' has no end"),
        ('root ::= ("a" | (b))\nb ::= (b | b "c")+', "line 2, column 1", "'b' has no end"),
        ('root ::= "a"\nunused ::= "" unused{2,}', "line 2, column 1", "'unused' has no end"),
        ('root ::= "a', "line 1, column 10", "no end"),
        ("root ::= [a", "line 1, column 10", "no end"),
        ('root ::= ("a"', "line 1, column 10", "no end"),
        ('root ::= "a")', "line 1, column 13", "nothing to close"),
        ("root ::= *", "line 1, column 10", "nothing to repeat"),
        ('root ::= "a"\n\n  root ::= "b"', "line 3, column 3", "is there already"),
        ('top ::= "a"', "line 1, column 1", "'root'"),
        ('"a"', "line 1, column 1", "must begin a rule"),
        ("", "line 1, column 1", "must begin a rule"),
        ('root ::= "a" & "b"', "line 1, column 14", "is not known"),
    ],
)
def test_faults_are_named_by_their_place(text: str, place: str, what: str) -> None:
    with pytest.raises(UnsupportedConstraintError) as caught:
        check_rules_end(text, max_depth=8)

    assert caught.value.path == place
    assert what in caught.value.message


def test_groups_may_be_nested_so_deep_and_no_deeper() -> None:
    check_rules_end("root ::= " + "(" * 8 + '"a"' + ")" * 8, max_depth=8)

    with pytest.raises(ConstraintTooComplexError):
        check_rules_end("root ::= " + "(" * 9 + '"a"' + ")" * 9, max_depth=8)
