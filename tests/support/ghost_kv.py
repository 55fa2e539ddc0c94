"""A KV cache without numbers: each slot remembers the chain of tokens that was written to it."""

from collections.abc import Mapping

from antiphon_engine import _native
from support.core_values import Buffers, Chain, ModelRequest, planned_rows


class GhostKv:
    """Executes plans on a ghost cache and compares every read with the request's own history."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._chains: dict[int, Chain] = {}
        self._block_tables: dict[int, dict[int, int]] = {}

    def execute(self, buffers: Buffers, requests: Mapping[int, ModelRequest]) -> set[int]:
        """Runs a step as a device would, from the plan's bytes; returns the blocks written."""
        header = buffers["header"]
        for row in buffers["slot_init"][: header[_native.HEADER_NUM_SLOT_INITS]]:
            self._block_tables[int(buffers["slot"][row])] = {}
        for slot, index, block in buffers["table_delta"][: header[_native.HEADER_NUM_TABLE_DELTAS]]:
            self._block_tables[int(slot)][int(index)] = int(block)
        written: set[int] = set()
        for row, handle in planned_rows(buffers):
            table = self._block_tables[int(buffers["slot"][row])]
            written |= self._write(buffers, row, table, requests[handle].chains)
        for row, handle in planned_rows(buffers):
            table = self._block_tables[int(buffers["slot"][row])]
            self._read(int(buffers["kv_len"][row]), table, requests[handle])
        return written

    def block_chain(self, block: int) -> Chain:
        """The chain up to a block's last token, which must have been written."""
        address = block * self._block_tokens + self._block_tokens - 1
        assert address in self._chains, "I7: a published block was never computed"
        return self._chains[address]

    def _write(
        self, buffers: Buffers, row: int, table: Mapping[int, int], chains: list[Chain]
    ) -> set[int]:
        first = int(buffers["cu_q"][row])
        blocks: set[int] = set()
        for offset, position in enumerate(
            range(int(buffers["ctx_len"][row]), int(buffers["kv_len"][row]))
        ):
            address = int(buffers["slot_mapping"][first + offset])
            assert address == self._address(table, position), (
                "I11: a token is written where its block table does not point"
            )
            self._chains[address] = chains[position]
            blocks.add(address // self._block_tokens)
        assert 0 not in blocks, "I4: a request writes to scratch"
        return blocks

    def _read(self, kv_len: int, table: Mapping[int, int], request: ModelRequest) -> None:
        for position, chain in enumerate(request.chains[:kv_len]):
            assert self._chains.get(self._address(table, position)) == chain, (
                f"I11: position {position} of {request.handle} reads another's KV"
            )

    def _address(self, table: Mapping[int, int], position: int) -> int:
        width = self._block_tokens
        return table[position // width] * width + position % width
