"""Who does something at the same instant as others."""

import asyncio
from collections.abc import Callable

from antiphon_server.sessions.shared_instants import MOST_CALLS, Instant, SharedInstants, Window


def call_of(calls: list[int], number: int) -> Callable[[], None]:
    return lambda: calls.append(number)


def window(begin_s: float, *, own_s: float | None = None, length_s: float = 0.3) -> Window:
    """Returns one on the loop's clock; unless told otherwise, its own instant is its end."""
    latest_s = begin_s + length_s
    return Window(earliest_s=begin_s, own_s=own_s or latest_s, latest_s=latest_s)


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def test_those_whose_time_it_is_share_an_instant() -> None:
    instants, calls, far_s = SharedInstants(), list[int](), now_s() + 600
    joined = [instants.join(window(far_s + i / 100), call_of(calls, i)) for i in range(10)]

    assert len(set(joined)) == 1


async def test_none_is_called_before_its_time_or_behind_it() -> None:
    instants, calls, far_s = SharedInstants(), list[int](), now_s() + 600
    joined = instants.join(window(far_s), call_of(calls, 0))
    early, late = window(far_s - 1), window(far_s + 1)

    assert instants.join(early, call_of(calls, 1)).when_s == early.own_s
    assert instants.join(late, call_of(calls, 2)).when_s == late.own_s
    assert joined.when_s not in (early.own_s, late.own_s)


async def test_many_are_spread_over_their_own_instants() -> None:
    instants, calls, far_s = SharedInstants(), list[int](), now_s() + 600
    joined = list[Instant]()
    for i in range(3 * MOST_CALLS):
        own_s = far_s + 0.3 * i / (3 * MOST_CALLS)
        joined.append(instants.join(window(far_s, own_s=own_s), call_of(calls, i)))

    assert len(set(joined)) == 3
    assert all(joined.count(each) == MOST_CALLS for each in joined)
    assert len({each.when_s for each in joined}) == 3


async def test_one_that_left_is_not_called_and_makes_room() -> None:
    instants, calls = SharedInstants(), list[int]()
    each = [call_of(calls, i) for i in range(MOST_CALLS)]
    first = [instants.join(window(now_s(), length_s=0.02), call) for call in each]
    first[3].leave(each[3])
    late = instants.join(window(now_s(), length_s=10.0), call_of(calls, 99))
    await asyncio.sleep(0.03)

    assert late is first[0]
    assert calls == [0, 1, 2, *range(4, MOST_CALLS), 99]
    late.leave(each[0])  # Nothing: it is over.


async def test_an_instant_that_all_have_left_is_nobodys() -> None:
    instants, calls, far_s = SharedInstants(), list[int](), now_s() + 600
    call = call_of(calls, 0)
    left = instants.join(window(far_s), call)
    left.leave(call)

    assert instants.join(window(far_s), call_of(calls, 1)) is not left


async def test_one_that_is_called_may_join_again() -> None:
    instants, calls, done = SharedInstants(), list[int](), asyncio.Event()

    def again() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            done.set()
        else:
            instants.join(window(now_s(), length_s=0.001), again)

    instants.join(window(now_s(), length_s=0.001), again)
    async with asyncio.timeout(60):
        await done.wait()

    assert calls == [0, 1, 2]
