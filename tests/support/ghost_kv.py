"""A device and a host without numbers: each cell remembers the chain that was written to it."""

import random

from antiphon_engine import _native
from support.core_steps import Copy, PlannedRow, PlannedStep, Sampler
from support.core_values import Chain, CoreShape, next_chain

Cells = list[Chain | None]
"""A block's cells; None: nothing that may be read."""


class GhostKv:
    """Executes steps on ghost memory and compares every read with the request's own history.

    It knows what the arrays say and nothing else: block tables by their deltas, tokens of steps
    before by the slot's last token. Copies of one kind come in any order.
    """

    def __init__(self, shape: CoreShape, rng: random.Random) -> None:
        self._width = shape.block_tokens
        self._rng = rng
        self._tables: dict[int, dict[int, int]] = {}
        self._last_tokens: dict[int, int] = {}
        self._memory: dict[int, list[Cells]] = {
            _native.TIER_DEVICE: self._blank(shape.num_blocks),
            _native.TIER_HOST: self._blank(shape.num_host_blocks + 1),
        }

    def execute(self, step: PlannedStep, sample: Sampler) -> None:
        step.check_image()
        self._copy(step.copies)
        self._update_tables(step)
        for row in step.rows:
            self._write(step, row)
        for row in step.rows:
            self._read(row)
        step.buffers["tokens"][:] = -1
        step.buffers["num_tokens"][:] = 0
        for row in step.rows:
            if row.samples and row.index not in step.late:
                self._sample(step, row, sample)
        step.executed = True

    def cells(self, tier: int, block: int) -> Cells:
        return self._memory[tier][block]

    def chain(self, tier: int, block: int, num_tokens: int) -> Chain:
        """The chain up to a block's n-th token, which must have been computed."""
        chain = self._memory[tier][block][num_tokens - 1]
        assert chain is not None, "I7: a published block was never computed"
        return chain

    def _blank(self, num_blocks: int) -> list[Cells]:
        return [[None] * self._width for _ in range(num_blocks)]

    def _copy(self, copies: list[Copy]) -> None:
        for kind in (_native.COPY_OFFLOAD, _native.COPY_ONLOAD, _native.COPY_ON_WRITE):
            group = [copy for copy in copies if copy.kind == kind]
            self._rng.shuffle(group)
            for copy in group:
                source = self._memory[copy.source_tier][copy.source][: copy.num_tokens]
                assert None not in source, "I11: a copy reads what was never written"
                holes: Cells = [None] * (self._width - copy.num_tokens)
                self._memory[copy.destination_tier][copy.destination] = [*source, *holes]

    def _update_tables(self, step: PlannedStep) -> None:
        header, buffers = step.buffers["header"], step.buffers
        for row in buffers["slot_init"][: header[_native.HEADER_NUM_SLOT_INITS]]:
            slot = int(buffers["slot"][row])
            self._tables[slot] = {}
            self._last_tokens.pop(slot, None)
        for slot, index, block in buffers["table_delta"][: header[_native.HEADER_NUM_TABLE_DELTAS]]:
            self._tables[int(slot)][int(index)] = int(block)

    def _write(self, step: PlannedStep, row: PlannedRow) -> None:
        table = self._tables[row.slot]
        chain = self._cell(table, row.start - 1) if row.start else row.history.root
        for position in range(row.start, row.end):
            at = row.first_token + position - row.start
            token = int(step.buffers["input_ids"][at])
            if token == -1:
                token = self._last_tokens[int(step.buffers["gather_slot"][at])]
            address = int(step.buffers["slot_mapping"][at])
            block, offset = divmod(address, self._width)
            assert block > 0, "I4: a request writes to scratch"
            assert (block, offset) == (table[position // self._width], position % self._width), (
                "I11: a token is written where its block table does not point"
            )
            assert chain is not None, "I11: a row goes on from what was never computed"
            chain = next_chain(chain, token)
            self._memory[_native.TIER_DEVICE][block][offset] = chain

    def _read(self, row: PlannedRow) -> None:
        table, width = self._tables[row.slot], self._width
        for start in range(0, row.end, width):
            stop = min(start + width, row.end)
            block = self._memory[_native.TIER_DEVICE][table[start // width]]
            assert block[: stop - start] == row.history.chains[start:stop], (
                f"I11: positions {start} to {stop} of {row.handle} read another's KV"
            )

    def _sample(self, step: PlannedStep, row: PlannedRow, sample: Sampler) -> None:
        token = sample(row.history, float(step.buffers["uniform"][row.index]))
        row.history.append(token)
        self._last_tokens[row.slot] = token
        step.buffers["tokens"][row.index] = token
        step.buffers["num_tokens"][row.index] = 1

    def _cell(self, table: dict[int, int], position: int) -> Chain | None:
        block, offset = table[position // self._width], position % self._width
        return self._memory[_native.TIER_DEVICE][block][offset]
