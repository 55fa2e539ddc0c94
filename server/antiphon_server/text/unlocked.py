"""Encoding that lets other threads run meanwhile."""

import tokenizers


def encode_unlocked(
    tokenizer: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool
) -> list[int]:
    """Returns a text's token ids.

    The library's `encode` holds the interpreter for as long as it takes, seconds for a long text,
    and with it the event loop; `encode_batch_fast` lets go of it.
    """
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    token_ids: list[int] = encoding.ids
    return token_ids
