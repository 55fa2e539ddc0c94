"""What checks of fields share: paths, ranges, and violations gathered into one refusal."""

from dataclasses import dataclass

from antiphon_engine.api.errors import FieldViolation, InvalidRequest


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a number may have."""

    lowest: float
    highest: float
    lowest_is_open: bool = False

    def __contains__(self, value: float) -> bool:
        """Says whether a value is in it; NaN never is."""
        above = value > self.lowest if self.lowest_is_open else value >= self.lowest
        return above and value <= self.highest

    def __str__(self) -> str:
        bracket = "(" if self.lowest_is_open else "["
        return f"{bracket}{self.lowest:g}, {self.highest:g}]"


class Violations:
    """Gathers what is wrong with a request, so that the caller learns all of it at once.

    Keeps the first few of very many.
    """

    _MAX_KEPT = 32

    def __init__(self) -> None:
        self._found: list[FieldViolation] = []

    def add(self, field: str, description: str) -> None:
        """Adds one."""
        if len(self._found) < self._MAX_KEPT:
            self._found.append(FieldViolation(field, description))

    def check_range(self, field: str, value: float, allowed: Range) -> None:
        """Adds one where the value is outside its range or no number."""
        if value not in allowed:
            self.add(field, f"must be in {allowed}, is {value:g}")

    def check_count(self, field: str, count: int, most: int) -> None:
        """Adds one where a list is longer than it may be."""
        if count > most:
            self.add(field, f"may have {most} entries at most, has {count}")

    def check_token_id(self, field: str, token_id: int, vocabulary_size: int) -> None:
        """Adds one where a token id is outside the model's vocabulary."""
        if token_id >= vocabulary_size:
            self.add(
                field, f"token ids are below the vocabulary's size {vocabulary_size}, is {token_id}"
            )

    def raise_if_any(self) -> None:
        """Raises InvalidRequest with all of them."""
        if self._found:
            raise InvalidRequest(*self._found)


def join_path(path: str, name: str) -> str:
    """Returns the path of a field below another; the request itself has the empty path."""
    return f"{path}.{name}" if path else name
