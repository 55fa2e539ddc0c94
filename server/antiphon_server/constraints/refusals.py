"""Why a constraint is not taken, as those say it who look into it."""

from typing import Final

_MAX_SHOWN_CHARACTERS: Final = 80


class UnsupportedConstraintError(Exception):
    """A part of a constraint can't be enforced, or is no constraint.

    Attributes:
        path: The part: a JSON pointer into the schema (`""`: the whole) or a position in the text,
            such as `line 2, column 7`.
        message: What is wrong with it, without the path.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class ConstraintTooComplexError(Exception):
    """A constraint is past a limit on size, depth or number of cases.

    Attributes:
        message: The value, the limit and what to do.
        metadata: The figures of `message`, for programs; `limit` among them.
    """

    def __init__(self, message: str, **metadata: str) -> None:
        super().__init__(message)
        self.message = message
        self.metadata = metadata


def shown(text: str) -> str:
    """Returns a caller's text in quotation marks as it was written, backslashes and all.

    What can't be printed is escaped, so that it stays one line, and a long text is cut, so that
    what is said about it is not.
    """
    cut = text[:_MAX_SHOWN_CHARACTERS]
    plain = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in cut
    )
    return f"'{plain}{'…' if len(text) > len(cut) else ''}'"
