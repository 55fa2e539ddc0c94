"""Servers of a tiny random model, as people start them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.engine_zygote import forked
from support.serve_command import Runner, serve_runner
from support.tiny_checkpoints import make_checkpoint
from support.tiny_tokenizers import save_byte_level_tokenizer


@contextmanager
def tiny_runner(directory: Path) -> Iterator[Runner]:
    """Yields what starts them in a folder, by forks; ends those that still run with the block."""
    checkpoint = save_byte_level_tokenizer(make_checkpoint(directory / "tiny"))
    with serve_runner(directory, checkpoint, engine_command=forked("antiphon_engine")) as made:
        yield made
