"""Captured steps: recorded once, and launched by one call each."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import torch

from antiphon_engine.checkpoint.progress import OnProgress

Replay: TypeAlias = Callable[[], None]
"""Launches what was recorded, on the current stream."""

_Size = TypeVar("_Size", bound=Hashable)


class Recorder(Protocol):
    """Records launches. Tests have one that runs them again."""

    def record(self, launch: Callable[[], None]) -> Replay:
        """Returns what launches the same again, over the same memory.

        `launch` waits for nothing, and all that changes between launches lies in memory.
        """


class CudaRecorder:
    """Captures CUDA graphs, which share one pool of memory: they never run at the same time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        # One for all: what libraries set up for a stream is set up once.
        self._stream = torch.cuda.Stream()

    def record(self, launch: Callable[[], None]) -> Replay:
        """See Recorder."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # Once at the side: libraries set themselves up at a first use, which can't be captured.
            launch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            launch()
        replay: Replay = graph.replay
        return replay


def record_all(
    recorder: Recorder,
    sizes: Sequence[_Size],
    launch: Callable[[_Size], None],
    on_progress: OnProgress,
) -> Mapping[_Size, Replay]:
    """Records steps of all sizes, the largest first: smaller ones fit into what those took.

    Args:
        recorder: Records.
        sizes: In ascending order.
        launch: Launches a step of a size.
        on_progress: Told of stage `capture` as sizes are done.
    """
    replays: dict[_Size, Replay] = {}
    for done, size in enumerate(reversed(sizes), start=1):
        replays[size] = recorder.record(partial(launch, size))
        on_progress("capture", done, len(sizes))
    return replays
