"""What a step may touch beside those in flight: blocks, both ends of copies, slots.

Device work runs in the order of the steps, but copies may run on streams of their own. So nothing
that a step in flight uses may be handed to someone else before that step is committed.
"""

from collections.abc import Sequence

from antiphon_engine import _native
from support.core_state import CoreState
from support.core_steps import PlannedRow, PlannedStep


class Fences:
    """Follows block tables and slots as planned; checks each step against those in flight."""

    def __init__(self, block_tokens: int) -> None:
        self._width = block_tokens
        self._tables: dict[int, dict[int, int]] = {}
        self._owners: dict[int, int] = {}

    def check(self, step: PlannedStep, in_flight: Sequence[PlannedStep], state: CoreState) -> None:
        """`in_flight`: the steps before that are not committed. `state`: after the plan."""
        self._take_slots(step, in_flight)
        self._update_tables(step)
        for row in step.rows:
            written = self._written(row)
            self._check_unshared(row, written, state)
            for block in self._table_blocks(row):
                step.device_blocks.setdefault(block, set()).add(row.handle)
            for earlier in in_flight:
                touched = {b for b in written if earlier.device_blocks.get(b, set()) - {row.handle}}
                assert not touched, f"I23: blocks {touched} are written while others use them"
        for copy in step.copies:
            for earlier in in_flight:
                used = earlier.blocks_in_use(copy.destination_tier)
                assert copy.destination not in used, "I23: a copy to a block in flight"
            if copy.source_tier == _native.TIER_HOST:
                arriving = {block for s in (*in_flight, step) for block in s.offloaded_to()}
                assert copy.source not in arriving, "I11: a host block is read while it is written"

    def release(self, handle: int) -> None:
        """A request has ended or was paused: its slot may be given away."""
        for slot in [slot for slot, owner in self._owners.items() if owner == handle]:
            del self._owners[slot]

    def _take_slots(self, step: PlannedStep, in_flight: Sequence[PlannedStep]) -> None:
        for row in step.rows:
            if not row.is_new:
                assert self._owners.get(row.slot) == row.handle, "a row is in another's slot"
                continue
            assert row.slot not in self._owners, "a slot has two owners"
            used = {r.slot for s in in_flight for r in s.rows if r.handle != row.handle}
            assert row.slot not in used, "I22: a slot is given away while a step uses it"
            self._owners[row.slot] = row.handle
            self._tables[row.slot] = {}

    def _update_tables(self, step: PlannedStep) -> None:
        num_deltas = step.buffers["header"][_native.HEADER_NUM_TABLE_DELTAS]
        slots = {row.slot for row in step.rows}
        for slot, index, block in step.buffers["table_delta"][:num_deltas]:
            assert int(slot) in slots, "a delta for a slot without a row"
            assert block > 0, "I4: scratch is in a block table"
            self._tables[int(slot)][int(index)] = int(block)

    def _table_blocks(self, row: PlannedRow) -> set[int]:
        table = self._tables[row.slot]
        return {table[index] for index in range(-(-row.end // self._width))}

    def _written(self, row: PlannedRow) -> dict[int, int]:
        """Blocks that a row writes, each with the first offset."""
        table, width, written = self._tables[row.slot], self._width, {}
        for position in range(row.start, row.end):
            written.setdefault(table[position // width], position % width)
        return written

    def _check_unshared(self, row: PlannedRow, written: dict[int, int], state: CoreState) -> None:
        for block, offset in written.items():
            assert state.chain_counts[block] == 1, "I12: a shared block is written"
            assert block in state.requests[row.handle].blocks, "I12: another's block is written"
            node = state.published.get(block)
            assert node is None or node.num_tokens <= offset, "I12: published KV is written over"
