"""Regular languages of texts, with intersection and complement: patterns, formats, names, numbers.

`terms.py` has the languages as values, `derivatives.py` answers questions about them, `patterns.py`
reads regular expressions, and `lark_text.py` writes a language as a terminal of a grammar.
"""
