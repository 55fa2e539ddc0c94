"""Makes an engine and runs the workloads on it."""

import gc
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.offline_bench import OfflineBench
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.engine_process import warm_up
from antiphon_engine.executor import WeightOrigin
from antiphon_engine.loading import load_model
from antiphon_engine.model.config import parse_model_config
from antiphon_engine.offline_bench.driver import BenchError, OfflineEngine
from antiphon_engine.offline_bench.machine import describe_machine
from antiphon_engine.offline_bench.report import table_of
from antiphon_engine.offline_bench.sessions import measure_sessions
from antiphon_engine.offline_bench.shapes import Shapes
from antiphon_engine.offline_bench.workloads import (
    Figures,
    measure_decode,
    measure_mix,
    measure_prefill,
)

_CONTEXT_TOKENS = 8192
"""Of requests, unless the settings or the model say less."""


def measure(bench: OfflineBench) -> Figures:
    """Runs the workloads and prints a table of each; returns all figures.

    Raises:
        StartupError: the model can't be served so.
    """
    with _checkpoint(Path(bench.model)) as checkpoint:
        return _run(bench, checkpoint)


@contextmanager
def _checkpoint(model: Path) -> Iterator[Path]:
    """Yields the directory with the model's config.json. Raises StartupError."""
    if model.is_dir():
        yield model
        return
    if not model.is_file():
        raise StartupError(f"{model} is neither a checkpoint's directory nor a config.json")
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder:
        shutil.copyfile(model, Path(folder) / "config.json")
        yield Path(folder)


def _run(bench: OfflineBench, checkpoint: Path) -> Figures:
    config = _with_context(bench.config, checkpoint)
    machine = describe_machine(config.device)
    start_s = time.perf_counter()
    model = load_model(config, checkpoint, weights=WeightOrigin(random_seed=bench.random_seed))
    warm_up(config, model)
    load_s = round(time.perf_counter() - start_s, 2)
    engine = OfflineEngine(config, checkpoint, model)
    # As in an engine's process.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 1 << 30)
    figures: Figures = {
        "model": bench.model,
        "dummy_weights": bench.random_seed is not None,
        "dtype": model.facts.dtype,
        "max_rows": config.max_rows,
        "max_step_tokens": config.max_step_tokens,
        "block_tokens": config.block_tokens,
        "kv_cache_tokens": engine.num_kv_tokens,
        "run_ahead": config.num_steps_ahead,
        "load_s": load_s,
        **machine,
    }
    print(table_of("engine", [figures]), flush=True)
    try:
        failed: list[str] = []
        for name, measure in _workloads(bench, engine).items():
            try:
                rows = measure()
            except (BenchError, RuntimeError, AssertionError):
                # What the others tell is worth having.
                traceback.print_exc()
                failed.append(name)
                break
            figures[name] = rows
            print(table_of(name, rows), flush=True)
            gc.collect()
        figures["failed"] = failed
    finally:
        engine.close()
    return figures


def _workloads(
    bench: OfflineBench, engine: OfflineEngine
) -> dict[str, Callable[[], list[Figures]]]:
    shapes = Shapes().divided(bench.divisor) if bench.divisor > 1 else Shapes()
    decode = replace(shapes.decode, batch_sizes=bench.batch_sizes)
    prefill = shapes.prefill

    def measure_decodes() -> list[Figures]:
        # Once at the side, so that what is made at a first use is there.
        warming = replace(decode, output_tokens=min(16, decode.output_tokens))
        measure_decode(engine, warming, max(decode.batch_sizes), seed=99)
        return [measure_decode(engine, decode, size) for size in decode.batch_sizes]

    def measure_prefills() -> list[Figures]:
        sizes = (prefill.num_prompts, prefill.num_prompts, 1)
        return [
            measure_prefill(engine, prefill, size, seed=seed) for seed, size in enumerate(sizes)
        ]

    everything: dict[str, Callable[[], list[Figures]]] = {
        "decode": measure_decodes,
        "prefill": measure_prefills,
        "mix": lambda: [measure_mix(engine, shapes.mix)],
        "sessions": lambda: [measure_sessions(engine, shapes.sessions)],
    }
    return {name: measure for name, measure in everything.items() if name in bench.workloads}


def _with_context(config: EngineConfig, checkpoint: Path) -> EngineConfig:
    if config.max_context_tokens:
        return config
    model = parse_model_config(Fields.read(checkpoint / "config.json"))
    return replace(config, max_context_tokens=min(model.context_tokens, _CONTEXT_TOKENS))
