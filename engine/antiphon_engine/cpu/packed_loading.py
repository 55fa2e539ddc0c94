"""A model's weights, packed: from the disk where they are kept there, else from the checkpoint."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from antiphon_engine.api.priority import lower
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.checkpoint.shards import Shards, find_shards
from antiphon_engine.cpu.packed_cache import PackedCache, file_identity, library_identity
from antiphon_engine.cpu.products import Products
from antiphon_engine.cpu.weights import CpuWeights, PackedSink, Packer
from antiphon_engine.model.config import ModelConfig
from antiphon_engine.model.transformer_weights import EMBEDDING, HEAD
from antiphon_engine.model.weights import TiedHead, load_weights

KEEPER: Final = "keep weights"
"""The name of the thread that writes them."""
_NICENESS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsToLoad:
    """What weights are to be."""

    config: ModelConfig
    products: Products
    isas: Mapping[str, str]
    """Instruction sets of products by form of weights."""
    num_threads: int
    """That load."""

    def empty(self, packer: Packer) -> CpuWeights:
        """Returns weights that aren't there yet."""
        return CpuWeights(self.config, self.products, isas=self.isas, packer=packer)


def load_packed(
    wanted: WeightsToLoad,
    checkpoint: Path,
    *,
    cache: PackedCache | None,
    on_progress: OnProgress,
) -> CpuWeights:
    """Returns a checkpoint's weights, packed.

    Matrices come from the cache where it has them. Else they are packed, and a thread that gives
    way to all others puts them there, which nobody waits for.

    Raises:
        StartupError: the checkpoint isn't the model's; found from its headers alone where the
            matrices are in the cache.
    """
    shards = find_shards(checkpoint)
    tied = TiedHead(head=HEAD, embedding=EMBEDDING) if wanted.config.tied_embeddings else None
    packer = Packer(wanted.num_threads)
    try:
        weights = wanted.empty(packer)
        key = _key(wanted, shards) if cache is not None else ""
        found = cache is not None and cache.read(key, _arrays(weights), packer.pool)
        if not found:
            # What was read in part would be left where nothing is packed.
            weights = wanted.empty(packer)
        load_weights(
            shards,
            weights.targets,
            tied=tied,
            on_progress=on_progress,
            in_place=_packed(weights) if found else frozenset(),
        )
    finally:
        packer.close()
    if cache is not None and not found:
        arguments = (cache, key, _arrays(weights))
        threading.Thread(target=_keep, args=arguments, name=KEEPER, daemon=True).start()
    return weights


def _key(wanted: WeightsToLoad, shards: Shards) -> str:
    """Returns all that decides what the packed bytes are."""
    matrices = [
        ([part.tensor for part in matrix.parts], matrix.num_in, matrix.weight_format, matrix.order)
        for matrix in wanted.products.matrices()
    ]
    facts = {
        "checkpoint": file_identity(sorted(shards.by_file())),
        "library": library_identity(),
        "isas": dict(wanted.isas),
        "matrices": matrices,
    }
    return json.dumps(facts)


def _arrays(weights: CpuWeights) -> list[NDArray[np.uint8]]:
    arrays = []
    for matrix in weights.matrices:
        packed, scales = matrix.arrays
        arrays += [packed, scales.view(np.uint8)]
    return arrays


def _packed(weights: CpuWeights) -> frozenset[str]:
    """Returns the tensors that are in matrices."""
    targets = weights.targets.items()
    return frozenset(name for name, target in targets if isinstance(target.sink, PackedSink))


def _keep(cache: PackedCache, key: str, arrays: list[NDArray[np.uint8]]) -> None:
    lower(threading.current_thread(), _NICENESS)
    cache.write(key, arrays)
