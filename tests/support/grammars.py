"""Grammars of expressions, schemas and tags, as the libraries' own converters write them."""

import json

import xgrammar
from llguidance import LLMatcher

from antiphon_engine.api.grammar import Grammar, GrammarBackend


def regex(text: str, backend: GrammarBackend = GrammarBackend.XGRAMMAR) -> Grammar:
    """Returns a regular expression as a grammar."""
    if backend is GrammarBackend.XGRAMMAR:
        return _ebnf(xgrammar.Grammar.from_regex(text))
    wrapped = json.loads(LLMatcher.grammar_from_regex(text))
    return _lark(str(wrapped["grammars"][0]["lark_grammar"]))


def schema(
    value: object, backend: GrammarBackend = GrammarBackend.XGRAMMAR, *, max_blank: int = 0
) -> Grammar:
    """Returns a JSON schema as a grammar; so many blanks in a row may stand outside of strings."""
    text = json.dumps(value, ensure_ascii=False)
    if backend is GrammarBackend.LLGUIDANCE:
        assert isinstance(value, dict)
        return _lark(f"start: %json {json.dumps({**value, 'x-guidance': _options(max_blank)})}")
    assert text.isascii(), "the library writes other characters as bytes, and reads them as others"
    if max_blank:
        return _ebnf(
            xgrammar.Grammar.from_json_schema(text, strict_mode=False, max_whitespace_cnt=max_blank)
        )
    return _ebnf(
        xgrammar.Grammar.from_json_schema(
            text, any_whitespace=False, separators=(",", ":"), strict_mode=False
        )
    )


def tag(text: str) -> Grammar:
    """Returns a structural tag as a grammar."""
    return _ebnf(xgrammar.Grammar.from_structural_tag(text))


def broken(backend: GrammarBackend = GrammarBackend.XGRAMMAR) -> Grammar:
    """Returns what is no grammar."""
    return Grammar(backend=backend, text="root ::= (")


def _ebnf(grammar: xgrammar.Grammar) -> Grammar:
    return Grammar(backend=GrammarBackend.XGRAMMAR, text=str(grammar))


def _lark(text: str) -> Grammar:
    return Grammar(backend=GrammarBackend.LLGUIDANCE, text=text)


def _options(max_blank: int) -> dict[str, object]:
    options: dict[str, object] = {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": max_blank > 0,
        "coerce_one_of": False,
        "lenient": False,
    }
    if max_blank:
        options["whitespace_pattern"] = rf"[\x20\x0A\x0D\x09]{{1,{max_blank}}}"
    return options
