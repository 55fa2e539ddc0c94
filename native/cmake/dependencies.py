"""Prints the distribution's dependencies, one a line, with those of the extras named as arguments.

Lets `make` install them before the distribution itself is built.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Reads pyproject.toml beside the folder native/ and prints what it asks for."""
    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        print(requirement)
    for extra in sys.argv[1:]:
        for requirement in project["optional-dependencies"][extra]:
            print(requirement)


if __name__ == "__main__":
    main()
