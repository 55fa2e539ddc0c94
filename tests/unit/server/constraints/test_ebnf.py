"""Rules of a grammar that an output could never leave, and the places of other faults."""

import pytest

from antiphon_engine.api.grammar import Grammar, GrammarBackend
from antiphon_engine.grammar.backends import Backends
from antiphon_engine.grammar.vocabulary import Vocabulary
from antiphon_server.constraints.ebnf import MAX_COUNT, check_rules_end
from antiphon_server.constraints.refusals import (
    ConstraintTooComplexError,
    UnsupportedConstraintError,
)
from support.grammar_walks import allowed_texts, say


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


@pytest.mark.parametrize("bounds", ["{N}", "{N,}", "{0,N}", "{ 1 , N }"])
@pytest.mark.parametrize("count", [MAX_COUNT + 1, (1 << 32) + 2, int("9" * 4000)])
def test_counts_that_the_backend_would_take_for_others_are_refused(bounds: str, count: int) -> None:
    text = 'root ::= "a"\nmore ::= ("x" | "y")' + bounds.replace("N", "00" + str(count))

    with pytest.raises(UnsupportedConstraintError) as caught:
        check_rules_end(text, max_depth=8)

    assert caught.value.path == "line 2, column 21"
    assert f"counts to {str(count)[:20]}, and at most {MAX_COUNT}" in caught.value.message


@pytest.mark.parametrize("count", [10**8, MAX_COUNT])
@pytest.mark.parametrize(
    ("bounds", "may_end"), [("{N}", False), ("{N,}", False), ("{0,N}", True), ("{9,N}", True)]
)
def test_high_counts_are_held_to(bounds: str, may_end: bool, count: int) -> None:
    text = f'root ::= ("x" | "zx"){bounds.replace("N", str(count))} "y"'
    tokens = tuple(bytes([value]) for value in range(256))
    backends = Backends(Vocabulary(tokens=tokens, control_ids=frozenset()))
    grammar = Grammar(backend=GrammarBackend.XGRAMMAR, text=text)

    check_rules_end(text, max_depth=8)
    matcher = backends.compile(grammar).matcher()
    say(backends, matcher, "xzx" * 20)

    wanted = {b"x", b"z", b"y"} if may_end else {b"x", b"z"}
    assert allowed_texts(backends, GrammarBackend.XGRAMMAR, matcher) == wanted
