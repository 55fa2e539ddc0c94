"""Rich text on standard output."""

from rich.console import Console


class OutputConsole(Console):
    """A console whose reader may leave, which is then told as for any other output."""

    def __init__(self) -> None:
        """Writes to standard output as it is now."""
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError; the library's own way ends the process with a status of its."""
        raise BrokenPipeError
