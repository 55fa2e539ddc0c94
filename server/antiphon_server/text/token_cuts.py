"""Where a text can be cut so that it is exactly what its first tokens say."""

from collections.abc import Mapping, Sequence

from antiphon_server.text.detokenizer import Detokenizer


def clean_cuts(detokenizer: Detokenizer, token_ids: Sequence[int]) -> Mapping[int, int]:
    """Returns, by a number of first characters, the fewest tokens that say exactly those.

    CPU work. Places inside a token, or inside a character that several tokens make, are not in it.

    Args:
        detokenizer: A new one for the text.
        token_ids: All tokens of the text.
    """
    detokenizer.push(token_ids)
    ends = detokenizer.ends
    cuts = {0: 0}
    for num_tokens, (complete, shown) in enumerate(zip(ends.complete, ends.shown, strict=True), 1):
        if complete == shown:
            cuts.setdefault(complete, num_tokens)
    return cuts
