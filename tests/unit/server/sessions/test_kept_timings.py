"""What is kept of where a turn's time went."""

from support.session_bench import BenchSpec, session_bench


async def test_timings_of_a_turn_outlast_its_server(spec: BenchSpec):
    async with session_bench(spec) as bench:
        await bench.create()
        told = (await bench.run("one", "t1"))[-1].completed.timings
    async with session_bench(spec) as bench:
        kept = (await bench.turn("t1")).timings

    assert kept == told
    assert len(kept.prefill_chunks) == 1
    assert kept.max_batch_size == 1
