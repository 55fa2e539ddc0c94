"""What is used of FlashInfer: the one place that knows its names.

Its kernels are compiled where they are used, for a head size at a time, which takes minutes. So
that is done when somebody asks for it, and never by a start.
"""

import importlib.util
from concurrent.futures import ThreadPoolExecutor, wait
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from antiphon_engine.checkpoint.progress import OnProgress

_PACKAGE: Final = "flashinfer"
_HOPPER: Final = 9
"""The major compute capability that the kernels of FlashAttention 3 are for."""
_NO_POSITIONS: Final = 0
"""Heads are rotated before attention."""
_PROGRESS_S: Final = 1.0
_SPLIT_BYTES: Final = 128 << 20
"""Where the kernels for other devices than Hopper leave parts of sums."""


class FlashInferError(Exception):
    """FlashInfer can't serve; says why, and what to do about it."""


class PrefillWrapper(Protocol):
    """What FlashInfer plans a step's attention with, and runs it by: arguments are its own."""

    def plan(  # noqa: PLR0913, PLR0917 - as the library has it
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        max_token_per_sequence: int,
    ) -> None:
        """Plans for all layers; all but the indices, which are block ids, lies on the host."""

    def run(
        self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor, enable_pdl: bool
    ) -> Tensor:
        """Launches one layer's attention: `q` and `out` are [tokens, heads, D]."""


class PrefillLibrary(Protocol):
    """Makes wrappers. Tests have one without a device."""

    @property
    def version(self) -> str:
        """Of the library."""

    def use_built(self, head_dim: int) -> bool:
        """Returns whether the kernels for a head size are built; they are loaded then."""

    def make_wrapper(self, device: torch.device) -> PrefillWrapper:
        """Allocates what plans are put into."""


class FlashInferLibrary:
    """The installed FlashInfer, with bfloat16 in and out."""

    def __init__(self, package: Any, *, capability: tuple[int, int]) -> None:
        self._package = package
        self._variant = "fa3" if capability[0] == _HOPPER else "fa2"

    @classmethod
    def find(cls) -> "FlashInferLibrary":
        """Returns the installed one. Raises FlashInferError where there is none that works."""
        if importlib.util.find_spec(_PACKAGE) is None:
            raise FlashInferError(
                "FlashInfer is not installed; `pip install 'antiphon[flashinfer]'`"
            )
        try:
            package = import_module(_PACKAGE)
            import_module(f"{_PACKAGE}.jit.env")
        except (ImportError, OSError, RuntimeError) as error:
            raise FlashInferError(f"FlashInfer can't be imported: {error}") from error
        return cls(package, capability=torch.cuda.get_device_capability())

    @property
    def version(self) -> str:
        """See PrefillLibrary."""
        return f"{self._package.__version__} {self._variant}"

    def use_built(self, head_dim: int) -> bool:
        """See PrefillLibrary."""
        spec = self._spec(head_dim)
        if spec.is_aot:
            return True
        if not Path(spec.jit_library_path).exists():
            return False
        # Taken as one that came with the package: as one that was built here it would be checked
        # against compilers and their flags, and built anew where any of them has changed.
        environment = self._package.jit.env
        environment.FLASHINFER_AOT_DIR = environment.FLASHINFER_JIT_DIR
        return True

    def build(self, head_dim: int, on_progress: OnProgress) -> None:
        """Builds the kernels for a head size, unless they are built; takes minutes.

        Args:
            head_dim: One of `api.attention_build.HEAD_DIMS`.
            on_progress: Told of stage `compile`, with files.

        Raises:
            FlashInferError: a compiler is missing, or fails.
        """
        if self.use_built(head_dim):
            return
        spec = self._spec(head_dim)
        directory, num_files = Path(spec.build_dir), len(spec.sources)
        with ThreadPoolExecutor(1) as thread:
            building = thread.submit(spec.build, verbose=False)
            while not wait((building,), timeout=_PROGRESS_S).done:
                on_progress("compile", len(list(directory.glob("*.o"))), num_files)
            try:
                building.result()
            except (OSError, RuntimeError) as error:
                raise FlashInferError(f"the kernels can't be built: {error}") from error

    def make_wrapper(self, device: torch.device) -> PrefillWrapper:
        """See PrefillLibrary."""
        size_bytes = _SPLIT_BYTES if self._variant == "fa2" else 1
        wrapper: PrefillWrapper = self._package.BatchPrefillWithPagedKVCacheWrapper(
            torch.empty(size_bytes, dtype=torch.uint8, device=device), "NHD", backend=self._variant
        )
        return wrapper

    def _spec(self, head_dim: int) -> Any:
        dtype = torch.bfloat16
        try:
            return self._package.jit.gen_batch_prefill_module(
                self._variant, dtype, dtype, dtype, torch.int32, head_dim, head_dim,
                _NO_POSITIONS, False, False, False,
            )  # fmt: skip
        except (OSError, RuntimeError) as error:
            raise FlashInferError(f"FlashInfer can't prepare its kernels: {error}") from error
