"""What each setting means, as the strings under its field say."""

import ast
import inspect
import itertools
import sys
from collections.abc import Mapping
from typing import get_type_hints

from antiphon_server.config import Config


def meanings() -> Mapping[str, str]:
    """Returns what each setting means, in one line of any length, by its key.

    Python drops such strings as it compiles, so they are read from the sources, which takes tens
    of milliseconds: for people who ask, not for a start.
    """
    return {
        f"{section}.{name}": meaning
        for section, kind in get_type_hints(Config).items()
        for name, meaning in _below_fields(kind).items()
    }


def _below_fields(kind: type) -> Mapping[str, str]:
    """Returns the string under each field of a class, by the field's name."""
    module = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    body = next(
        node.body
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    found = {}
    for declared, behind in itertools.pairwise(body):
        match declared, behind:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found
