"""Where what belongs to a user is kept, unless the settings say otherwise."""

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon_engine.api.errors import StartupError


def home_of_user() -> str:
    """Returns the home folder that the system knows of this process's user; empty: none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        # A container may run as a number that has no entry.
        return ""


@dataclass(frozen=True, slots=True)
class UserFolders:
    """The folders of one user."""

    environ: Mapping[str, str]
    """Where XDG_CACHE_HOME and XDG_STATE_HOME may name other folders than the usual ones."""
    home: str
    """The home folder; empty: there is none."""

    def cache_dir(self) -> str:
        """Returns where models are kept. Raises StartupError."""
        return str(self._folder("XDG_CACHE_HOME", ".cache", "model.cache_dir") / "antiphon")

    def store_path(self) -> str:
        """Returns where sessions are kept. Raises StartupError."""
        folder = self._folder("XDG_STATE_HOME", ".local/state", "store.path")
        return str(folder / "antiphon/sessions.db")

    def expand(self, path: str) -> str:
        """Returns a path with the home folder for `~`."""
        names_home = path == "~" or path.startswith("~/")
        return self.home + path[1:] if self.home and names_home else path

    def _folder(self, variable: str, under_home: str, setting: str) -> Path:
        if named := self.environ.get(variable):
            return Path(named)
        if not self.home:
            # A folder that everyone may write to would give conversations and weights away.
            raise StartupError(
                f"{setting}: its default is in the user's home folder, and there is none; "
                f"set {setting}, {variable} or HOME"
            )
        return Path(self.home, under_home)
