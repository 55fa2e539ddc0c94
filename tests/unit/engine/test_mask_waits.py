"""What is counted of waits for masks."""

from antiphon_engine.mask_waits import MaskWaits


def _waits(*instants_ns: int) -> MaskWaits:
    return MaskWaits(iter(instants_ns).__next__)


def test_waits_are_added_up_by_request():
    waits = _waits(10, 13, 20, 27, 30, 31)

    waits.begin(1)
    waits.end(1)
    waits.begin(1)
    waits.begin(1)  # A late mask behind one that was foreseen to be late.
    waits.end(1)
    waits.begin(2)
    waits.end(2)

    assert waits.take(1) == (2, 10)
    assert waits.take(2) == (1, 1)


def test_a_request_that_ends_while_it_waits_has_waited_until_then():
    waits = _waits(10, 15)

    waits.begin(1)

    assert waits.take(1) == (1, 5)


def test_nothing_is_kept_of_what_was_taken_or_never_waited():
    waits = _waits(10, 15)
    waits.begin(1)
    waits.take(1)

    waits.end(2)

    assert waits.take(1) == waits.take(2) == (0, 0)
