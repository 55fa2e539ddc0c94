"""What the machine can do at most, and the share of it that Antiphon's engine gets.

Decoding one stream reads every weight once for a token, so memory bounds it; a long prompt's
tokens are multiplied with every weight of the layers, so arithmetic does.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.checkpoint.shards import stored_kinds
from antiphon_engine.cpu.products import Products, plan_products
from antiphon_engine.model.config import parse_model_config
from antiphon_engine.model.registry import default_registry
from antiphon_engine.quantization import Quantization
from bench.cpu_peers.catalog import ENGINES, QUANTIZATIONS, Machine

HERE = Path(__file__).parent
_ROWS = 512
_SHAPES = ((896, 4864), (4864, 896), (2048, 2048))
"""Inputs and outputs: the default model's feed-forward network, and a square."""
_NUM_MATRICES = 8
_NUM_REPEATS = 7


def measure(machine: Machine, engines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Measures, prints, and returns ceilings and shares of what `engines` have shown."""
    read_gbs = read_bandwidth_gbs(machine.num_threads)
    gemm_gflops = gemm_rate_gflops(machine.num_threads)
    print(f"read bandwidth {read_gbs:.1f} GB/s; bfloat16 products {gemm_gflops:.0f} GFLOP/s")
    shares = {}
    for name, figures in engines.items():
        engine = ENGINES[name]
        if engine.product != "antiphon" or "decode1_tps" not in figures:
            continue
        products = planned(machine.checkpoint, engine.weights)
        shares[name] = {
            "decode1_of_bandwidth": round(
                weight_bytes(products) * figures["decode1_tps"] / (read_gbs * 1e9), 3
            ),
            "prefill_of_gemm": round(
                2 * layer_weights(products) * figures["prefill512_tps"] / (gemm_gflops * 1e9), 3
            ),
        }
        decode, prefill = shares[name].values()
        print(f"{name}: decode 1 at {decode:.0%} of the bandwidth, prefill at {prefill:.0%}")
    return {
        "read_gbs": round(read_gbs, 1),
        "gemm_bf16_gflops": round(gemm_gflops, 1),
        "shares": shares,
    }


def read_bandwidth_gbs(num_threads: int) -> float:
    """Returns what so many threads read from memory, in 10^9 bytes a second; needs a C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "read_bandwidth")
        source = HERE / "read_bandwidth.c"
        flags = ("-O3", "-march=native", "-pthread")
        subprocess.run(["cc", *flags, "-o", program, source], check=True)
        words = [program, str(num_threads)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
    return float(done.stdout)


@torch.inference_mode()
def gemm_rate_gflops(num_threads: int) -> float:
    """Returns the best rate of a product of 512 rows in bfloat16, as PyTorch's library has it."""
    torch.set_num_threads(num_threads)
    best = 0.0
    for num_in, num_out in _SHAPES:
        rows = torch.randn(_ROWS, num_in).bfloat16()
        weights = [torch.randn(num_out, num_in).bfloat16() for _ in range(_NUM_MATRICES)]
        seconds = _best_s(partial(_multiply, rows, weights))
        best = max(best, 2 * _ROWS * num_in * num_out * _NUM_MATRICES / seconds / 1e9)
    return best


def planned(checkpoint: Path, weights: str) -> Products:
    """Returns the matrices that Antiphon has for a form of weights."""
    config = parse_model_config(
        Fields.read(checkpoint / "config.json"), supported=default_registry().architectures
    )
    return plan_products(
        config,
        dtype="bfloat16",
        quantization=Quantization(QUANTIZATIONS[weights]),
        kinds=stored_kinds(checkpoint),
    )


def weight_bytes(products: Products) -> int:
    """Returns what a token of one stream reads: all matrices, but of an embedding one row."""
    apart = products.embedding.num_bytes if products.embedding is not products.head else 0
    return sum(matrix.num_bytes for matrix in products.matrices()) - apart


def layer_weights(products: Products) -> int:
    """Returns how many weights each of a prompt's tokens is multiplied with."""
    outer = {id(products.embedding), id(products.head)}
    return sum(
        matrix.num_out * matrix.num_in for matrix in products.matrices() if id(matrix) not in outer
    )


def _multiply(rows: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
    for each in weights:
        torch.nn.functional.linear(rows, each)


def _best_s(run: Callable[[], object]) -> float:
    found = []
    for _ in range(_NUM_REPEATS):
        begin_s = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin_s)
    return min(found)
