"""Builds FlashInfer's kernels: `python -m antiphon_engine.cuda.attention_build --head-dim 128`."""

import argparse
import sys
import time

from antiphon_engine.api.attention_build import HEAD_DIMS
from antiphon_engine.api.parent_process import end_with_parent, share_the_terminal


def main() -> int:
    """Builds, and returns the exit status."""
    end_with_parent()
    share_the_terminal()
    parser = argparse.ArgumentParser(prog="python -m antiphon_engine.cuda.attention_build")
    parser.add_argument("--head-dim", type=int, choices=HEAD_DIMS, required=True)
    head_dim: int = parser.parse_args().head_dim
    import torch

    from antiphon_engine.cuda.flashinfer_library import FlashInferError, FlashInferLibrary

    if not torch.cuda.is_available():
        print("antiphon: kernels are built for the device of this machine, which has none",
              file=sys.stderr)  # fmt: skip
        return 1
    try:
        FlashInferLibrary.find().build(head_dim, _Report())
    except FlashInferError as error:
        print(f"antiphon: {error}", file=sys.stderr)
        return 1
    print(f"the kernels for heads of {head_dim} features are built")
    return 0


class _Report:
    """Prints how far a build is, as files are done and every ten seconds."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._told = (-1, 0)

    def __call__(self, stage: str, done: int, total: int) -> None:
        spent_s = int(time.monotonic() - self._start)
        mark = (done, spent_s // 10)
        if mark != self._told:
            self._told = mark
            print(f"{stage}: {done} of {total} files, {spent_s} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
