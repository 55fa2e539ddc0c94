"""An output that is taken up again: the last ids of its prompt were generated before.

To the core it is a prompt like any other. What must not show is the cut: limits count what was
generated before, and draws go on where they stood.
"""

from msgspec.structs import replace

from antiphon_engine.api.messages import GenerationRequest

_MASK = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def rest_of(request: GenerationRequest) -> GenerationRequest:
    """Returns the request for what an output still lacks, as if its prompt were all prompt."""
    num_resumed = request.num_resumed_tokens
    if not num_resumed:
        return request
    stop, sampling = request.stop, request.sampling
    return replace(
        request,
        sampling=replace(sampling, seed=shifted_seed(sampling.seed, num_resumed)),
        stop=replace(
            stop,
            max_output_tokens=stop.max_output_tokens - num_resumed,
            min_output_tokens=max(0, stop.min_output_tokens - num_resumed),
        ),
    )


def shifted_seed(seed: int, num_tokens: int) -> int:
    """Returns the seed whose draw at any position is that of `seed` `num_tokens` later.

    The core draws from the stream of splitmix64 that begins at Mix(seed + gamma), and Mix is a
    bijection: so there is a seed for every place of the stream.
    """
    start = _mix((seed + _GOLDEN_GAMMA) & _MASK) + num_tokens * _GOLDEN_GAMMA
    return (_unmix(start & _MASK) - _GOLDEN_GAMMA) & _MASK


def _mix(x: int) -> int:
    """The finalizer of splitmix64, as in the core's `random.h`."""
    x ^= x >> 30
    x = x * _FACTORS[0] & _MASK
    x ^= x >> 27
    x = x * _FACTORS[1] & _MASK
    return x ^ (x >> 31)


def _unmix(x: int) -> int:
    x = _undo_shift(x, 31)
    x = x * pow(_FACTORS[1], -1, 1 << 64) & _MASK
    x = _undo_shift(x, 27)
    x = x * pow(_FACTORS[0], -1, 1 << 64) & _MASK
    return _undo_shift(x, 30)


def _undo_shift(x: int, num_bits: int) -> int:
    """Returns the y with x = y ^ (y >> num_bits)."""
    y = x
    while (shifted := y >> num_bits) ^ y != x:
        y = x ^ shifted
    return y
