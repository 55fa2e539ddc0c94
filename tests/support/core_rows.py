"""Reads a plan from its arrays and checks each row against what is known of its request."""

from collections.abc import Mapping

from antiphon_engine import _native
from support.core_steps import PlannedRow, PlannedStep, planned_copies, planned_handles
from support.core_values import Buffers, CoreShape, History, ModelRequest, seeded_uniform

Requests = Mapping[int, ModelRequest]


def read_step(step_id: int, buffers: Buffers, requests: Requests, shape: CoreShape) -> PlannedStep:
    """Reads a step, checks it, and moves its requests on to where it leaves them."""
    handles = planned_handles(buffers)
    _check_shape(buffers, handles, requests, shape)
    rows = []
    for index, handle in enumerate(handles):
        request = requests[handle]
        row = _read_row(buffers, index, request, shape)
        _check_row(buffers, row, request, shape)
        request.computed = row.end
        request.num_rows += 1
        request.num_known += row.samples
        rows.append(row)
    new = [row.index for row in rows if row.is_new]
    num_inits = buffers["header"][_native.HEADER_NUM_SLOT_INITS]
    assert list(buffers["slot_init"][:num_inits]) == new, "slot_init names other rows"
    step = PlannedStep(step_id=step_id, buffers=buffers, rows=rows, copies=planned_copies(buffers))
    _check_copies(step, shape)
    step.keep_image()
    return step


def _check_shape(
    buffers: Buffers, handles: list[int], requests: Requests, shape: CoreShape
) -> None:
    header = buffers["header"]
    q_lens = [int(q_len) for q_len in buffers["q_len"][: len(handles)]]
    edges = [sum(q_lens[:i]) for i in range(len(handles) + 1)]
    assert handles or header[_native.HEADER_NUM_COPIES], "I17: a step of nothing"
    assert len(handles) <= shape.max_running, "I13: too many rows"
    assert sum(q_lens) <= shape.max_step_tokens, "I13: too many tokens"
    assert header[_native.HEADER_NUM_TOKENS] == sum(q_lens)
    assert header[_native.HEADER_NUM_TABLE_DELTAS] <= shape.min_table_deltas
    assert header[_native.HEADER_NUM_COPIES] <= shape.copy_limit, "I13: too many copies"
    assert len(set(handles)) == len(handles), "I13: a request is there twice"
    assert set(handles) <= set(requests), "I13: an ended request runs"
    assert list(buffers["cu_q"][: len(handles) + 1]) == edges
    flags = [int(bits) for bits in buffers["flags"][: len(handles)]]
    num_prefills = sum(1 for bits in flags if bits & _native.FLAG_PREFILL)
    num_samples = sum(1 for bits in flags if bits & _native.FLAG_SAMPLE)
    assert header[_native.HEADER_NUM_PREFILL_ROWS] == num_prefills
    assert header[_native.HEADER_NUM_DECODE_ROWS] == len(handles) - num_prefills
    assert header[_native.HEADER_NUM_SAMPLES] == num_samples
    decodes_first = [bool(bits & _native.FLAG_PREFILL) for bits in flags]
    assert decodes_first == sorted(decodes_first), "a prompt comes before those that decode"


def _read_row(buffers: Buffers, index: int, request: ModelRequest, shape: CoreShape) -> PlannedRow:
    flags, start = int(buffers["flags"][index]), int(buffers["ctx_len"][index])
    epoch = int(buffers["epoch"][index])
    if flags & (_native.FLAG_FIRST | _native.FLAG_RESUMED):
        _begin_epoch(request, start)
        assert bool(flags & _native.FLAG_FIRST) == (request.reused is None), "it starts twice"
        assert bool(flags & _native.FLAG_RESUMED) == (request.reused is not None)
        if flags & _native.FLAG_FIRST:
            request.reused = int(buffers["reused_tokens"][index])
            assert request.reused == start, "I8: other tokens are reused than told"
    assert epoch == request.epoch, "I22: a row of another epoch"
    return PlannedRow(
        index=index,
        handle=request.handle,
        epoch=epoch,
        slot=int(buffers["slot"][index]),
        flags=flags,
        start=start,
        end=int(buffers["kv_len"][index]),
        first_token=int(buffers["cu_q"][index]),
        history=request.history,
    )


def _begin_epoch(request: ModelRequest, start: int) -> None:
    """A request starts, or goes on after a pause with what commits have told."""
    assert not request.running, "a request that runs gets a new slot"
    assert start < len(request.tokens), "I8: no token is left to compute"
    request.running = True
    request.history = History(request.ask.scope, request.tokens)
    request.reached = max(request.reached, request.computed)
    assert start <= request.max_reused, "I8: what a request has to compute was reused"
    request.recomputed += max(0, request.computed - start)
    request.computed = start
    request.num_known = len(request.tokens)
    request.sampled_in_epoch = False


def _check_row(buffers: Buffers, row: PlannedRow, request: ModelRequest, shape: CoreShape) -> None:
    q_len, tokens = int(buffers["q_len"][row.index]), request.tokens
    at = row.token_slice
    samples = row.end == request.num_known
    assert request.running, "I13: a request runs that was not admitted"
    assert q_len >= 1, "I14: a row without tokens"
    assert row.end - row.start == q_len
    assert row.start == request.computed, "I21: a row does not go on where the last one ended"
    assert row.end <= request.num_known, "I21: a row computes what is not known"
    assert samples or row.end % shape.block_tokens == 0, "I14: a chunk ends inside a block"
    assert q_len <= (shape.chunk_tokens or q_len), "I14: a chunk is too long"
    assert row.samples == samples
    assert bool(row.flags & _native.FLAG_PREFILL) == (not request.sampled_in_epoch)
    known = tokens[row.start : row.end]
    unknown = q_len - len(known)
    assert list(buffers["input_ids"][at]) == known + [-1] * unknown, "I20: other inputs"
    assert list(buffers["gather_slot"][at]) == [-1] * len(known) + [row.slot] * unknown
    assert list(buffers["positions"][at]) == list(range(row.start, row.end))
    begin, stop = buffers["sample_indptr"][row.index : row.index + 2]
    assert list(buffers["sample_rows"][begin:stop]) == [at.stop - 1] * samples
    position = request.num_known - len(request.ask.prompt)
    assert buffers["output_position"][row.index] == position, "I19: an output position is wrong"
    if samples:
        assert position < request.ask.output_limit(shape), "32: a row that nobody waits for"
        uniform = seeded_uniform(request.ask.seed, request.ask.output_index, position)
        assert buffers["uniform"][row.index] == uniform, "I19: another draw"
        request.sampled_in_epoch = True


def _check_copies(step: PlannedStep, shape: CoreShape) -> None:
    ends = [(copy.destination_tier, copy.destination) for copy in step.copies]
    assert len(set(ends)) == len(ends), "I11: two copies of a step go to one place"
    limits = {
        _native.TIER_DEVICE: shape.num_blocks,
        _native.TIER_HOST: shape.num_host_blocks + 1,
    }
    for copy in step.copies:
        assert 1 <= copy.num_tokens <= shape.block_tokens, "a copy of no tokens"
        assert 1 <= copy.source < limits[copy.source_tier], "I4: a copy from scratch or nowhere"
        assert 1 <= copy.destination < limits[copy.destination_tier], "I4: a copy to scratch"
        if copy.kind == _native.COPY_OFFLOAD:
            assert copy.source_tier == _native.TIER_DEVICE
        elif copy.kind == _native.COPY_ONLOAD:
            assert copy.source_tier == _native.TIER_HOST
