"""Checks C++ sources with clang-tidy: `clang_tidy.py CLANG_TIDY SOURCE… -- COMPILER_FLAG…`.

Most of what clang-tidy does for a source is to read the standard library's headers, so it is given
two texts with half of the sources each, and the lines that it tells are translated. What a source
needs and doesn't include itself would be there from another, so the compiler reads each alone.
"""

import re
import subprocess
import sys
import tempfile
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_NUM_GROUPS = 2


def main() -> int:
    """Prints what is wrong; returns 1 if anything is."""
    clang_tidy, *sources = sys.argv[1 : sys.argv.index("--")]
    flags = sys.argv[sys.argv.index("--") + 1 :]
    # By size and in turn, so that the groups take equally long.
    ordered = sorted(map(Path, sources), key=lambda source: source.stat().st_size)
    groups = [ordered[index::_NUM_GROUPS] for index in range(_NUM_GROUPS)]
    # Where the project's settings for clang-tidy are found.
    Path("build").mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir="build", prefix="clang_tidy") as folder,
        ThreadPoolExecutor(_NUM_GROUPS) as threads,
    ):
        checks = [
            threads.submit(_check_together, clang_tidy, group, Path(folder) / f"{index}.cc", flags)
            for index, group in enumerate(groups)
        ]
        checks += [threads.submit(_check_alone, source, flags) for source in ordered]
        complaints = [complaint for check in checks if (complaint := check.result())]
    print("\n".join(complaints), end="")
    return 1 if complaints else 0


def _check_together(clang_tidy: str, sources: list[Path], whole: Path, flags: list[str]) -> str:
    texts = [source.read_text() for source in sources]
    first_lines = [0]
    for text in texts:
        first_lines.append(first_lines[-1] + text.count("\n"))
    whole.write_text("".join(texts))
    folders = sorted({f"-I{source.parent}" for source in sources})
    result = subprocess.run(
        [clang_tidy, "-quiet", str(whole), "--", *flags, *folders],
        capture_output=True,
        text=True,
        check=False,
    )

    def translate(place: re.Match[str]) -> str:
        index = bisect_right(first_lines, int(place[1]) - 1) - 1
        return f"{sources[index]}:{int(place[1]) - first_lines[index]}"

    told = re.sub(rf"\S*{re.escape(str(whole))}:(\d+)", translate, result.stdout + result.stderr)
    return told if result.returncode else ""


def _check_alone(source: Path, flags: list[str]) -> str:
    result = subprocess.run(
        ["c++", "-fsyntax-only", *flags, str(source)], capture_output=True, text=True, check=False
    )
    return result.stderr if result.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
