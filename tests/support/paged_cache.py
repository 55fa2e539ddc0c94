"""A layer's paged cache with random blocks, for the tests of what attends to it."""

import torch
from torch import Tensor

from antiphon_engine.cuda.kernels.paged_attention import Heads
from support import cuda_reference as reference


class PagedCache:
    """A pool with a table of blocks for each slot, and heads of one layer; block 0 is nobody's."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        heads: tuple[int, int, int],
        *,
        block_tokens: int = 16,
        norm: bool = False,
        narrow: bool = False,
        num_slots: int = 4,
        num_blocks: int = 8,
    ) -> None:
        num_heads, num_kv_heads, head_dim = heads
        angles = torch.randn(num_blocks * block_tokens, head_dim // 2, device=device)
        weights = torch.rand(2, head_dim, device=device).to(dtype) + 0.5
        self.heads = Heads(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            cosines=angles.cos(),
            sines=angles.sin(),
            q_norm_D=weights[0] if norm else None,
            k_norm_D=weights[1] if norm else None,
            norm_epsilon=1e-5,
        )
        shape = (num_slots * num_blocks + 1, block_tokens, num_kv_heads, head_dim)
        self.pools = tuple(torch.randn(shape, device=device).to(dtype) for _ in range(2))
        self.narrow = narrow
        if narrow:
            self.pools = tuple(map(reference.narrow_pool, self.pools))
        blocks = torch.randperm(num_slots * num_blocks, device=device).int() + 1
        self.tables = blocks.view(num_slots, num_blocks)
        self.block_tokens = block_tokens
        self.device, self.dtype = device, dtype

    def qkv(self, num_tokens: int) -> Tensor:
        """Returns what was projected of new tokens."""
        return torch.randn(num_tokens, self.heads.width, device=self.device).to(self.dtype)

    def ints(self, values: list[int]) -> Tensor:
        """Returns values as kernels read them."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def out(self, num_tokens: int) -> Tensor:
        """Returns where attention goes, of which nothing is written yet."""
        size = self.heads.num_heads * self.heads.head_dim
        return torch.full((num_tokens, size), float("nan"), device=self.device, dtype=self.dtype)

    def places(self, tokens: list[tuple[int, int]]) -> Tensor:
        """Returns where tokens go, slots and positions: block * block_tokens + offset."""
        slots, positions = torch.tensor(tokens, device=self.device).unbind(1)
        blocks = self.tables[slots, positions // self.block_tokens].long()
        return blocks * self.block_tokens + positions % self.block_tokens

    def context(self, slot: int, num_tokens: int) -> tuple[Tensor, ...]:
        """Returns keys and values of a slot's first tokens: [tokens, heads, D]."""
        blocks = self.tables[slot, : -(-num_tokens // self.block_tokens)].long()
        pools = (pool[blocks] for pool in self.pools)
        found = map(reference.widened_pool, pools) if self.narrow else pools
        return tuple(side.flatten(0, 1)[:num_tokens] for side in found)

    def check_stored(self, found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> None:
        """Compares keys and values as they lie there with what they were."""
        if not self.narrow:
            tolerance = 2e-5 if self.dtype is torch.float32 else 1e-2
            assert reference.relative_error(found[0], wanted[0]) < tolerance
            assert torch.equal(found[1].float(), wanted[1])
            return
        # The interpreter lets go of what rounding carries into the exponent.
        tolerance = 0.2 if self.device.type == "cpu" else 0.01
        for held, side in zip(found, wanted, strict=True):
            assert reference.relative_error(held, reference.narrowed(side)) < tolerance
