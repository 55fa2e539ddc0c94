"""What a start says of a model whose weights are damaged."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.engine_process import warm_up
from antiphon_engine.loading import load_model
from support.tiny_checkpoints import make_checkpoint


@pytest.mark.parametrize("is_damaged", [False, True])
def test_logits_that_are_no_numbers_are_told(tmp_path, is_damaged):
    checkpoint = make_checkpoint(tmp_path)
    weights = load_file(checkpoint / "model.safetensors")
    if is_damaged:
        weights["model.layers.1.mlp.down_proj.weight"][3, 5] = torch.nan
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    config = EngineConfig(kv_cache_tokens=1024, num_threads=1)

    with capture_logs() as logs:
        warm_up(config, load_model(config, checkpoint))

    told = [each for each in logs if "logits are no numbers" in each["event"]]
    assert len(told) == is_damaged
