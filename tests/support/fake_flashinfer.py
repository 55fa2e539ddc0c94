"""FlashInfer without a device: what is used of its package, computing plainly."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from support import cuda_reference as reference


class FakeWrapper:
    """A BatchPrefillWithPagedKVCacheWrapper that holds callers to what the real one asks."""

    def __init__(self, workspace: Tensor, kv_layout: str, backend: str) -> None:
        assert kv_layout == "NHD"
        self.backend = backend
        self.workspace_bytes = workspace.numel()
        self.plans: list[dict[str, object]] = []
        """Lists of integers, and what else a plan is told."""
        self.num_runs = 0

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len,
        num_qo_heads, num_kv_heads, head_dim_qk, page_size, *,
        causal, q_data_type, kv_data_type, max_token_per_sequence,
    ) -> None:  # fmt: skip
        arrays = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(array.dtype is torch.int32 for array in arrays)
        assert all(array.is_cpu for array in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len))
        assert causal
        assert q_data_type is kv_data_type
        assert max_token_per_sequence == int(qo_indptr.diff().max())
        self.plans.append(
            {
                "starts": qo_indptr.tolist(),
                "block_starts": paged_kv_indptr.tolist(),
                "blocks": paged_kv_indices.tolist(),
                "last_tokens": paged_kv_last_page_len.tolist(),
                "heads": (num_qo_heads, num_kv_heads, head_dim_qk),
                "block_tokens": page_size,
            }
        )

    def run(self, q, paged_kv_cache, *, out, enable_pdl) -> Tensor:
        plan = self.plans[-1]
        assert not enable_pdl
        assert len(q) == plan["starts"][-1]
        assert q.shape == out.shape
        assert q.shape[1:] == (plan["heads"][0], plan["heads"][2])
        self.num_runs += 1
        for row, (first, end) in enumerate(pairwise(plan["starts"])):
            blocks = plan["blocks"][slice(*plan["block_starts"][row : row + 2])]
            length = (len(blocks) - 1) * plan["block_tokens"] + plan["last_tokens"][row]
            keys, values = (pool[blocks].flatten(0, 1)[:length] for pool in paged_kv_cache)
            context = length - (end - first)
            out[first:end] = reference.attention(q[first:end], keys, values, context=context)
        return out


class FakeLibrary:
    """A PrefillLibrary whose kernels are built, or not."""

    version = "0.0 fake"

    def __init__(self, *, built: bool = True) -> None:
        self.built = built
        self.wrappers: list[FakeWrapper] = []

    def use_built(self, head_dim: int) -> bool:
        return self.built

    def make_wrapper(self, device: torch.device) -> FakeWrapper:
        self.wrappers.append(FakeWrapper(torch.empty(1), "NHD", "fake"))
        return self.wrappers[-1]


@dataclass
class FakeSpec:
    """A JitSpec: a module, and where it is built."""

    name: str
    environment: SimpleNamespace
    fails: bool
    sources = ("one.cu", "two.cu")

    @property
    def build_dir(self) -> Path:
        return self.environment.FLASHINFER_JIT_DIR / self.name

    @property
    def jit_library_path(self) -> Path:
        return self.build_dir / f"{self.name}.so"

    @property
    def is_aot(self) -> bool:
        return (self.environment.FLASHINFER_AOT_DIR / self.name / f"{self.name}.so").exists()

    def build(self, verbose: bool) -> None:
        if self.fails:
            raise RuntimeError("Ninja build failed.")
        self.build_dir.mkdir(parents=True)
        self.jit_library_path.touch()


def fake_package(directory: Path, *, fails: bool = False) -> SimpleNamespace:
    """Returns a package that builds into a directory."""
    environment = SimpleNamespace(
        FLASHINFER_AOT_DIR=directory / "ahead", FLASHINFER_JIT_DIR=directory / "here"
    )

    def gen_batch_prefill_module(variant: str, *arguments: object) -> FakeSpec:
        return FakeSpec(f"prefill_{variant}_{arguments[4]}", environment, fails)

    return SimpleNamespace(
        __version__="0.0",
        jit=SimpleNamespace(env=environment, gen_batch_prefill_module=gen_batch_prefill_module),
        BatchPrefillWithPagedKVCacheWrapper=FakeWrapper,
    )
