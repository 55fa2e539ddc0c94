"""How long work on checkpoints tells how far it is."""

from collections.abc import Callable

OnProgress = Callable[[str, int, int], None]
"""Takes a stage's name, how much is done and how much there is; 0 of 0: unknown."""
