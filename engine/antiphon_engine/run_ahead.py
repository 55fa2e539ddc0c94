"""How far the engine's loop is ahead of the device."""

from collections.abc import Callable

RECENT_STEPS = 8
"""For how many steps behind a request another one is expected."""
MAX_HOST_SHARE = 1 / 6
"""Of a step's time: where the host takes more, its work is always hidden."""
_KEPT = 7 / 8
"""Of what earlier steps count, with each further one."""


class RunAhead:
    """Says how many steps may be under way when another is planned; the loop's thread asks it.

    A step that is launched ahead hides the host's work behind the device's. But a request that
    comes while a step runs then waits for the one behind it too. Where requests keep coming, steps
    are long beside the host's part of them and none waits for room anyway, nothing is launched
    ahead: every stream loses the host's part of each step, and whoever comes gains a whole step.
    """

    def __init__(self, num_steps: int, *, adapts: bool) -> None:
        """Makes it for a loop.

        Args:
            num_steps: Steps that may be under way at most.
            adapts: Whether there are fewer where that pays.
        """
        self._num_steps = num_steps
        self._adapts = adapts and num_steps > 0
        self._steps_since_request = RECENT_STEPS
        self._step_ns = 0.0
        self._host_ns = 0.0

    def note_request(self) -> None:
        """A request has come."""
        self._steps_since_request = 0

    def note_step(self, *, step_ns: int, host_ns: int) -> None:
        """A step was launched.

        Args:
            step_ns: From the end of the step before the last one that ended to that one's.
            host_ns: What the host worked meanwhile, without its waits for the device and without
                launches that went on beside the step that they belong to.
        """
        self._steps_since_request += 1
        self._step_ns = _KEPT * self._step_ns + step_ns
        self._host_ns = _KEPT * self._host_ns + host_ns

    def num_steps(self, num_waiting: Callable[[], int]) -> int:
        """Returns how many steps may be under way.

        Args:
            num_waiting: Counts requests that wait for room; asked only where it decides.
        """
        if not self._adapts or self._steps_since_request >= RECENT_STEPS:
            return self._num_steps
        if self._host_ns >= MAX_HOST_SHARE * self._step_ns or num_waiting():
            return self._num_steps
        return 0
