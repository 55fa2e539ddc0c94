"""The engines that can be measured, how each is started, and what it needs for that."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.cpu_peers.antiphon_server import antiphon_server
from bench.cpu_peers.http_servers import Calls, LlamaCalls, OpenAiCalls, http_server
from bench.cpu_peers.places import Places
from bench.cpu_peers.streams import MeasuredEngine
from bench.cpu_peers.workers import worker
from bench.serving import free_ports

HERE = Path(__file__).parent
MAX_STREAMS = 16
IN_PROCESS = "in process"
SERVER = "server"


@dataclass(frozen=True, slots=True)
class Machine:
    """What all engines run with."""

    places: Places
    checkpoint: Path
    """The default model's, as Antiphon has it."""
    num_threads: int
    start_limit_s: float
    kernels: str = "auto"
    """Antiphon's `engine.cpu_kernels`."""

    def log(self, name: str) -> Path:
        """Returns where an engine's output goes."""
        self.places.logs.mkdir(parents=True, exist_ok=True)
        return self.places.logs / f"{name}.log"


Opened = AbstractContextManager[MeasuredEngine]


@dataclass(frozen=True, slots=True)
class Engine:
    """One line of the table."""

    name: str
    kind: str
    """SERVER or IN_PROCESS."""
    weights: str
    product: str
    """Engines of one product map the same libraries: side by side, each would seem smaller."""
    open: Callable[[Machine], Opened]
    needs: Callable[[Places], Path]
    """Returns a file without which it isn't installed."""
    prepare: Callable[[Machine], None] = lambda machine: None
    """Has it keep what a first start finds out, so that each start is a later one."""


# Antiphon's words for its forms of weights, by the names of the table.
QUANTIZATIONS = {"bf16": "none", "int8": "int8", "int4": "int4", "stored": "auto"}


def own_settings(weights: str, machine: Machine) -> dict[str, str]:
    """Returns the settings of Antiphon's engine for a form of weights."""
    return {"cpu_kernels": machine.kernels, "quantization": QUANTIZATIONS[weights]}


def _own_server(name: str, weights: str, machine: Machine) -> Opened:
    settings = [f"engine.{key}={value}" for key, value in own_settings(weights, machine).items()]
    settings.append(f"engine.num_threads={machine.num_threads}")
    return antiphon_server("demo", settings, machine.log(name))


def _own_words(script: str, weights: str, machine: Machine) -> list[str]:
    settings = own_settings(weights, machine) | {"num_threads": machine.num_threads}
    return [sys.executable, str(HERE / script), str(machine.checkpoint), json.dumps(settings)]


def _own_process(name: str, weights: str, machine: Machine) -> Opened:
    words = _own_words("antiphon_worker.py", weights, machine)
    return worker(words, environment=dict(os.environ), log=machine.log(name))


def _keep_packed(weights: str, machine: Machine) -> None:
    subprocess.run(_own_words("antiphon_packing.py", weights, machine), check=True)


def _openvino(name: str, weights: str, machine: Machine) -> Opened:
    places = machine.places
    words = [str(places.openvino / "venv" / "bin" / "python"), str(HERE / "openvino_worker.py")]
    words += [str(places.openvino_model(weights)), str(machine.num_threads)]
    return worker(words, environment=dict(os.environ), log=machine.log(name))


@contextmanager
def _server(
    name: str,
    machine: Machine,
    command: Callable[[int], Sequence[str]],
    calls: Calls,
    environment: dict[str, str],
) -> Iterator[MeasuredEngine]:
    (port,) = free_ports(1)
    with http_server(
        command,
        calls,
        port=port,
        environment=dict(os.environ) | environment,
        log=machine.log(name),
        start_limit_s=machine.start_limit_s,
    ) as server:
        yield server


def _llama_cpp(name: str, weights: str, machine: Machine) -> Opened:
    def command(port: int) -> list[str]:
        return [
            *(str(machine.places.llama_server), "--port", str(port), "--no-webui"),
            *("-m", str(machine.places.gguf(weights)), "-t", str(machine.num_threads)),
            *("-np", str(MAX_STREAMS), "-kvu", "-c", "16384", "-b", "2048", "-ub", "512"),
        ]

    return _server(name, machine, command, LlamaCalls(), {})


def _vllm(name: str, weights: str, machine: Machine, *words: str) -> Opened:
    venv = machine.places.vllm / "venv"
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: machine.num_threads]))
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }
    openmp = venv / "lib" / "libiomp5.so"
    if openmp.exists():
        environment["LD_PRELOAD"] = str(openmp)

    def command(port: int) -> list[str]:
        return [
            *(str(venv / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(machine.places.bfloat16), "--served-model-name", "measured"),
            *("--dtype", "bfloat16", "--max-model-len", "2048", "--host", "127.0.0.1"),
            *("--max-num-seqs", str(MAX_STREAMS), "--enable-prefix-caching"),
            *("--port", str(port)),
            *words,
        ]

    return _server(name, machine, command, OpenAiCalls(), environment)


def _vllm_engine(name: str, *words: str) -> Engine:
    def opens(machine: Machine) -> Opened:
        return _vllm(name, "bf16", machine, *words)

    return Engine(name, SERVER, "bf16", "vllm", opens, lambda places: places.bfloat16)


def _own(weights: str, kind: str) -> Engine:
    name = f"antiphon-{weights}"
    if kind == IN_PROCESS:
        name += "-in-process"
    opens = _own_process if kind == IN_PROCESS else _own_server
    return Engine(
        name,
        kind,
        weights,
        "antiphon",
        partial(opens, name, weights),
        lambda places: HERE,
        partial(_keep_packed, weights),
    )


def _llama(weights: str) -> Engine:
    name = f"llama.cpp-{weights}"
    return Engine(
        name,
        SERVER,
        weights,
        "llama.cpp",
        partial(_llama_cpp, name, weights),
        lambda places: places.llama_server,
    )


def _vino(weights: str) -> Engine:
    name = f"openvino-{weights}"
    return Engine(
        name,
        IN_PROCESS,
        weights,
        "openvino",
        partial(_openvino, name, weights),
        lambda places: places.openvino_model(weights) / "openvino_detokenizer.xml",
    )


_ALL = (
    *(_own(weights, SERVER) for weights in QUANTIZATIONS),
    *(_own(weights, IN_PROCESS) for weights in QUANTIZATIONS),
    *(_llama(weights) for weights in ("q4_k_m", "q8_0", "bf16")),
    *(_vino(weights) for weights in ("int8", "f16")),
    # Compiled, it starts in twice the time, minutes where nothing is in its cache: by name only.
    _vllm_engine("vllm-bf16", "--enforce-eager"),
    _vllm_engine("vllm-bf16-compiled"),
)
ENGINES = {engine.name: engine for engine in _ALL}
DEFAULT = (
    "antiphon-stored",
    "antiphon-int8",
    "antiphon-bf16",
    "antiphon-int8-in-process",
    "antiphon-bf16-in-process",
    "llama.cpp-q4_k_m",
    "llama.cpp-q8_0",
    "llama.cpp-bf16",
    "openvino-int8",
    "openvino-f16",
    "vllm-bf16",
)
