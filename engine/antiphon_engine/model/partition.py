"""Which part of every matrix this process holds, where a model is spread over several devices."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon_engine.api.errors import StartupError

if TYPE_CHECKING:
    from torch import Tensor


def keep(partial: "Tensor") -> "Tensor":
    """Sums over the parts where there is one."""
    return partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Rank `rank` of `size` equal parts."""

    rank: int = 0
    size: int = 1
    all_reduce: "Callable[[Tensor], Tensor]" = keep
    """Returns the sum of a tensor over all ranks; may change its argument."""

    def share(self, whole: int, what: str) -> int:
        """Returns the length of one part. Raises StartupError where the parts would be unequal."""
        if whole % self.size:
            raise StartupError(f"{whole} {what} can't be divided over {self.size} devices evenly")
        return whole // self.size

    def span(self, whole: int) -> slice:
        """Returns this rank's part of `whole` entries, which `share` has found divisible."""
        part = whole // self.size
        return slice(self.rank * part, (self.rank + 1) * part)
