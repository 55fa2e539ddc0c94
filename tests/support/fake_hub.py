"""A model hub that has what it is given."""

from pathlib import Path

from antiphon_engine.api.errors import StartupError


class FakeHub:
    """Counts what is fetched; without anything to fetch, it can't be reached."""

    def __init__(self, *, cached: Path | None = None, fetched: Path | None = None) -> None:
        self._cached = cached
        self._fetched = fetched
        self.fetches: list[str] = []

    def cached(self, repository: str) -> Path | None:
        return self._cached

    def fetch(self, repository: str) -> Path:
        self.fetches.append(repository)
        if self._fetched is None:
            raise StartupError(f"can't fetch {repository}")
        return self._fetched
