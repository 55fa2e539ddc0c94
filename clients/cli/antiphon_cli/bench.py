"""`antiphon bench`: measures an engine without a server."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from antiphon_cli.model_flags import add_model_flags, model_sets
from antiphon_cli.outcome import FAILED, WRONG_USE, complain

if TYPE_CHECKING:
    from antiphon_engine.api.offline_bench import OfflineBench

DESCRIPTION = """\
Measures an engine in a process of its own, without a server: generation at given batch sizes,
prompts alone, a mix of 512 requests, and 64 conversations of 6 turns. All requests are greedy, and
end by their length. Prints tables, and one JSON object as the last line."""
EXAMPLES = """\
examples:
  antiphon bench offline --model demo
  antiphon bench offline --model ./checkpoint --device cuda
  antiphon bench offline --model ./shapes/llama-3.1-8b/config.json --dummy-weights --device cuda
  antiphon bench offline --model ./checkpoint --workloads decode --batch-sizes 1,8 --divide 16
"""

_WORKLOADS: Final = ("decode", "prefill", "mix", "sessions")
_BATCH_SIZES: Final = (1, 8, 32, 128, 256)
_CUDA_ROWS: Final = "engine.max_rows=512"
"""As many as the mix has requests; all else is as a server on such a device has it."""
_PLACES: Final = ("HOME", "XDG_CACHE_HOME", "ANTIPHON_MODEL__CACHE_DIR")
"""Variables that say where models are kept. No other is read: figures are told with the settings
that made them."""


class FindModel(Protocol):
    """Finds a model as a server does; raises StartupError."""

    def __call__(
        self, model: str, *, cache_dir: Path, progress: Callable[[str, int, int], None]
    ) -> Path:
        """Returns its checkpoint's directory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument("what", metavar="offline", choices=["offline"], help="the engine alone")
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="a checkpoint directory, FILE.gguf, a hub id, or demo, the default model; "
        "with --dummy-weights a config.json is enough",
    )
    parser.add_argument(
        "--dummy-weights",
        action="store_true",
        help="random weights in place of the checkpoint's: nothing but its shape is read",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random weights (default 0)")
    add_model_flags(parser)
    parser.add_argument(
        "--workloads",
        type=_names,
        default=_WORKLOADS,
        metavar="NAMES",
        help=f"of {','.join(_WORKLOADS)} (default all)",
    )
    parser.add_argument(
        "--batch-sizes",
        type=_sizes,
        metavar="SIZES",
        help="of the decode workload (default: of 1,8,32,128,256 those up to engine.max_rows)",
    )
    parser.add_argument(
        "--divide",
        type=int,
        default=1,
        metavar="N",
        help="divide lengths and counts by N, for a quick look",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="engine.KEY=VALUE",
        help="a setting of the engine; may be given again",
    )


def run(
    arguments: argparse.Namespace,
    *,
    run_bench: Callable[["OfflineBench"], int] | None = None,
    find_model: FindModel | None = None,
) -> int:
    """Measures, and returns the exit status.

    Args:
        arguments: The flags.
        run_bench: Takes what is to be measured; None: measures it.
        find_model: Finds the model; None: as a server does.
    """
    from antiphon_engine.api.checkpoint import resolve_model
    from antiphon_engine.api.errors import StartupError
    from antiphon_engine.api.offline_bench import OfflineBench, bench_command, run_offline_bench
    from antiphon_server import settings

    if arguments.divide < 1:
        complain(f"--divide is {arguments.divide}, but must be at least 1")
        return WRONG_USE
    try:
        places = {name: os.environ[name] for name in _PLACES if name in os.environ}
        whole = settings.load_config(_sets(arguments), None, places)
    except StartupError as error:
        complain(str(error))
        return WRONG_USE
    config = whole.engine
    batch_sizes = arguments.batch_sizes or [
        size for size in _BATCH_SIZES if size <= config.max_rows
    ]
    largest = max(batch_sizes)
    if "decode" in arguments.workloads and largest > config.max_rows:
        complain(
            f"--batch-sizes has {largest}, but engine.max_rows is {config.max_rows}; "
            f"add --set engine.max_rows={largest}"
        )
        return WRONG_USE
    try:
        model = _find(arguments, Path(whole.model.cache_dir), find_model or resolve_model)
    except StartupError as error:
        complain(str(error))
        return FAILED
    bench = OfflineBench(
        model=str(model),
        random_seed=arguments.seed if arguments.dummy_weights else None,
        config=config,
        workloads=tuple(arguments.workloads),
        batch_sizes=tuple(batch_sizes),
        divisor=arguments.divide,
    )
    return (run_bench or (lambda bench: run_offline_bench(bench, bench_command())))(bench)


def _find(arguments: argparse.Namespace, cache_dir: Path, find_model: FindModel) -> Path:
    """Returns the directory of the model's checkpoint, or its shape. Raises StartupError."""
    from antiphon_engine.api.errors import StartupError
    from antiphon_server.progress import Progress

    shape = Path(arguments.model).expanduser()
    if shape.is_file() and shape.suffix == ".json":
        if arguments.dummy_weights:
            return shape
        raise StartupError(f"{shape} has no weights; add --dummy-weights to measure random ones")
    progress = Progress(sys.stderr)
    try:
        return find_model(arguments.model, cache_dir=cache_dir, progress=progress)
    finally:
        progress.end()


def _sets(arguments: argparse.Namespace) -> list[str]:
    rows = [_CUDA_ROWS] if arguments.device == "cuda" else []
    return [*rows, *model_sets(arguments), *arguments.set]


def _names(text: str) -> Sequence[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in _WORKLOADS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no workload {unknown[0]!r}; there are {', '.join(_WORKLOADS)}"
        )
    return names


def _sizes(text: str) -> Sequence[int]:
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 1,8,32") from None
    if min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{min(sizes)} is no batch size: at least 1")
    return sizes
