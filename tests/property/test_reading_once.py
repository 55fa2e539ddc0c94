"""However streams break, a reader gets every answer once, and every turn runs once."""

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_client import Client, ClientOptions, RetryPolicy, TurnRestarted
from support.breaking_sessions import Break, BreakingSessions
from support.scripted_services import serving

OPTIONS = ClientOptions(
    reconnect=RetryPolicy(first_delay_s=0.0001, max_delay_s=0.001), reconnect_timeout_s=20
)

breaks = st.lists(
    st.builds(
        Break,
        behind=st.integers(1, 12),
        crashes=st.booleans(),
        loses_frames=st.integers(0, 4).map(lambda number: number == 0),
    ),
    max_size=8,
)
answers = st.lists(st.text("ab \u00e9", min_size=1, max_size=4), max_size=9)


async def read(turn):
    """Returns the answer as a person has it at last, and how often it was begun again."""
    text, num_restarts = "", 0
    while True:
        try:
            async for piece in turn.text():
                text += piece
            return text, num_restarts
        except TurnRestarted as restarted:
            kept = restarted.kept_text
        assert text.startswith(kept)
        text, num_restarts = kept, num_restarts + 1


async def talk(servicer, num_turns):
    serves = serving(sessions=servicer)
    async with serves as target, Client(target, OPTIONS) as client, client.new_session() as session:
        turns = [await session.send("x", turn_id=f"t{i}") for i in range(num_turns)]
        return [await read(turn) for turn in turns]


@settings(deadline=None, max_examples=40)
@given(breaks=breaks, answer=answers, num_turns=st.integers(1, 4), seed=st.integers(0, 1 << 16))
def test_an_answer_is_read_once_wherever_streams_break(breaks, answer, num_turns, seed):
    draws = random.Random(seed)
    servicer = BreakingSessions(lambda *_: answer, breaks, most_joined=lambda: draws.randint(1, 3))

    read = asyncio.run(talk(servicer, num_turns))

    assert read == [("".join(answer), 0)] * num_turns
    assert set(servicer.num_runs.values()) == {1}


@settings(deadline=None, max_examples=40)
@given(breaks=breaks, versions=st.lists(answers, min_size=1, max_size=4), seed=st.integers(0, 99))
def test_an_answer_that_changes_with_crashes_is_read_as_it_is_at_last(breaks, versions, seed):
    draws = random.Random(seed)

    def answer(turn_id, epoch):
        return versions[epoch % len(versions)]

    servicer = BreakingSessions(answer, breaks, most_joined=lambda: draws.randint(1, 3))

    ((text, num_restarts),) = asyncio.run(talk(servicer, 1))

    assert text in {"".join(answer("t0", epoch)) for epoch in servicer.ended_epochs["t0"]}
    assert num_restarts <= servicer.epoch - 1
