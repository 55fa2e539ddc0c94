"""Where an output can be cut so that what it has told is exactly what its first tokens say."""

from collections.abc import Callable, Sequence

from antiphon_server.text.output_text import OutputText, Piece


def told_cuts(text: OutputText, token_ids: Sequence[int]) -> dict[int, int]:
    """Returns, by a number of first characters, the fewest tokens that tell so many.

    CPU work. Characters are those of all channels. Places inside a token, or inside a character
    that several tokens make, are not in it; of those that are, a few may tell something else where
    nothing follows, so look with `said_by`.

    Args:
        text: A new reader of the output, without stop strings.
        token_ids: All tokens of the output.
    """
    cuts = {0: 0}
    num_told = 0
    for num_tokens, token_id in enumerate(token_ids, 1):
        num_told += sum(len(piece.text) for piece in text.push([token_id]))
        cuts.setdefault(num_told, num_tokens)
    return cuts


def call_cuts(text: OutputText, token_ids: Sequence[int]) -> list[int]:
    """Returns, for each call that is complete, the fewest tokens that hold all of it. CPU work.

    Args:
        text: A new reader of the output, without stop strings.
        token_ids: All tokens of the output.
    """
    return [
        num_tokens
        for num_tokens, token_id in enumerate(token_ids, 1)
        for piece in text.push([token_id])
        if piece.completes_call
    ]


def said_by(new_text: Callable[[], OutputText], token_ids: Sequence[int]) -> list[Piece]:
    """Returns what tokens say where nothing follows them."""
    text = new_text()
    return [*text.push(token_ids), *text.finish()]
