"""Log-probabilities as lines for people."""

from antiphon.v1 import types_pb2


def line_of(position: int, entry: types_pb2.PositionLogprobs) -> str:
    """Returns a line on the token at a position, with the likeliest tokens there."""
    if not entry.HasField("chosen"):
        return f"{position:>6}  (nothing is before it)"
    chosen = entry.chosen
    line = f"{position:>6} {chosen.logprob:>9.4f}  {_shown(chosen.token)}"
    likeliest = "  ".join(f"{_shown(top.token)} {top.logprob:.4f}" for top in entry.top)
    return f"{line}  | {likeliest}" if likeliest else line


def _shown(token: bytes) -> str:
    # Quoted, so that white space shows and nothing in it steers the terminal.
    try:
        return repr(token.decode())
    except UnicodeDecodeError:
        return repr(token)
