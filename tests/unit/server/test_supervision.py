import pytest

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.handle import EngineState
from antiphon_server.supervision import Supervision
from support.fake_engine import FakeEngine


async def test_nothing_is_served_before_an_engine_is_followed() -> None:
    assert not Supervision().serving


@pytest.mark.parametrize("state", [EngineState.STARTING, EngineState.STALLED, EngineState.DOWN])
async def test_serving_follows_the_engine(state: EngineState) -> None:
    engine = FakeEngine()
    supervision = Supervision()
    told: list[bool] = []
    supervision.on_change(lambda: told.append(supervision.serving))

    supervision.follow([engine])
    engine.set_state(state)
    engine.set_state(EngineState.READY)

    assert told == [True, False, True]


async def test_draining_server_takes_no_calls_and_lets_running_ones_end() -> None:
    supervision = Supervision()
    supervision.follow([FakeEngine()])

    with supervision.call():
        supervision.begin_drain()
        with pytest.raises(AntiphonError) as caught, supervision.call():
            pytest.fail("a call was taken")
        num_running_at_limit = await supervision.wait_idle(0.01)

    assert caught.value.reason is ErrorReason.DRAINING
    assert caught.value.retry_delay_s is not None
    assert not supervision.serving
    assert num_running_at_limit == 1
    assert await supervision.wait_idle(5) == 0
