"""What is found out of a checkpoint before its engine is started."""

from dataclasses import replace
from pathlib import Path

import pytest

from antiphon_engine.api.errors import StartupError
from antiphon_server.model_loading import load_text_side
from support.server import INFO, loopback_config
from support.tiny_tokenizers import save_byte_level_tokenizer


def test_sampling_default_out_of_range_is_refused_before_the_weights_are_loaded(
    tmp_path: Path,
) -> None:
    checkpoint = save_byte_level_tokenizer(tmp_path / "tokenizer")
    info = replace(INFO, sampling_defaults={"temperature": -1.0})

    with pytest.raises(StartupError, match="sets temperature to -1"):
        load_text_side(loopback_config(tmp_path), checkpoint, info)


@pytest.mark.parametrize(("top_k", "in_force"), [(-1.0, 0), (40.0, 40), (1e12, 2**32 - 1)])
def test_top_k_of_the_checkpoint_is_taken_however_it_says_all(
    tmp_path: Path, top_k: float, in_force: int
) -> None:
    checkpoint = save_byte_level_tokenizer(tmp_path / "tokenizer")
    info = replace(INFO, sampling_defaults={"top_k": top_k})

    text = load_text_side(loopback_config(tmp_path), checkpoint, info)

    assert text.checkpoint_config.sampling.top_k == in_force
