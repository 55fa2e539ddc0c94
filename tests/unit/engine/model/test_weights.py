import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from antiphon_engine.api.checkpoint import inspect_checkpoint
from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.checkpoint.shards import INDEX_NAME, find_shards
from antiphon_engine.model.config import parse_model_config
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.registry import default_registry
from antiphon_engine.model.transformer import Transformer
from antiphon_engine.model.transformer_weights import weight_targets
from support.tiny_checkpoints import TinyModel, make_checkpoint, prompts
from support.whole_prompt import prompt_logits

SHARDED = TinyModel(max_shard_size="200KB")
FLOAT32 = torch.float32
WHOLE = Partition()


def load(checkpoint, part=WHOLE) -> Transformer:
    config = parse_model_config(Fields.read(checkpoint / "config.json"))
    model = default_registry().build(config, part=part, dtype=FLOAT32)
    model.load(checkpoint, on_progress=lambda stage, done, total: None)
    return model


def shards_of(checkpoint):
    return sorted(checkpoint.glob("*.safetensors"))


def change_index(checkpoint, change):
    path = checkpoint / INDEX_NAME
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def change_config(checkpoint, **members):
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


def change_tensors(checkpoint, change):
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


@pytest.fixture
def sharded(tmp_path):
    checkpoint = make_checkpoint(tmp_path, SHARDED)
    assert len(shards_of(checkpoint)) >= 3
    return checkpoint


def test_sharded_checkpoint_gives_the_model_of_the_single_file(tmp_path, sharded):
    single = make_checkpoint(tmp_path / "single", TinyModel())
    (prompt,) = prompts(1, least=20, most=20)

    assert torch.equal(
        prompt_logits(sharded, prompt, FLOAT32), prompt_logits(single, prompt, FLOAT32)
    )


def test_deleted_shard_is_named(sharded):
    missing = shards_of(sharded)[1]
    missing.unlink()

    with pytest.raises(StartupError, match=missing.name):
        load(sharded)
    with pytest.raises(StartupError, match=missing.name):
        inspect_checkpoint(sharded)


def test_renamed_shard_is_named(sharded):
    missing = shards_of(sharded)[1]
    missing.rename(sharded / "other.safetensors")

    with pytest.raises(StartupError, match=missing.name):
        load(sharded)


def test_tensor_of_the_index_that_no_shard_holds_is_named(sharded):
    file = shards_of(sharded)[0].name
    change_index(sharded, lambda weight_map: weight_map.update({"ghost.weight": file}))

    with pytest.raises(StartupError, match=r"ghost\.weight \(1 in all\)"):
        load(sharded)


def test_tensor_of_a_shard_that_the_index_does_not_name_is_named(sharded):
    name = "model.layers.1.mlp.down_proj.weight"
    change_index(sharded, lambda weight_map: weight_map.pop(name))

    with pytest.raises(StartupError, match=name):
        load(sharded)


def test_index_may_not_name_files_elsewhere(sharded):
    change_index(sharded, lambda weight_map: weight_map.update({"x": "../model.safetensors"}))

    with pytest.raises(StartupError, match="outside"):
        load(sharded)


def test_all_shards_without_an_index_work(sharded):
    (sharded / INDEX_NAME).unlink()

    assert find_shards(sharded).files.keys() == weight_map_of(load(sharded))


def weight_map_of(model):
    return weight_targets(model, model._config, WHOLE).keys()


def test_shard_missing_without_an_index_is_reported_by_its_tensors(sharded):
    (sharded / INDEX_NAME).unlink()
    shards_of(sharded)[1].unlink()

    with pytest.raises(StartupError, match=r"lacks tensors .* in all\)"):
        load(sharded)


def test_stray_file_is_ignored_with_a_warning(sharded):
    save_file({"stray": torch.zeros(1)}, sharded / "stray.safetensors")

    with capture_logs() as logs:
        load(sharded)

    assert [entry["files"] for entry in logs] == [["stray.safetensors"]]


def test_tensor_in_two_files_is_refused(sharded):
    (sharded / INDEX_NAME).unlink()
    (sharded / "twice.safetensors").write_bytes(shards_of(sharded)[0].read_bytes())

    with pytest.raises(StartupError, match=r"both in .* and in twice"):
        load(sharded)


def test_cut_file_is_named(tmp_path):
    checkpoint = make_checkpoint(tmp_path)
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])

    with pytest.raises(StartupError, match=r"model\.safetensors is no whole"):
        load(checkpoint)


def test_every_parameter_is_covered_exactly_once(tmp_path):
    checkpoint = make_checkpoint(tmp_path, TinyModel(family="qwen3"))
    model = load(checkpoint)
    for parameter in model.parameters():
        parameter.data.zero_()

    for target in weight_targets(model, model._config, WHOLE).values():
        target.sink.destination.add_(1)

    assert all((parameter == 1).all() for parameter in model.parameters())


def test_unknown_tensor_is_named(tmp_path):
    checkpoint = make_checkpoint(tmp_path)
    change_tensors(checkpoint, lambda t: t.update({"unknown.weight": torch.zeros(2)}))

    with pytest.raises(StartupError, match=r"unknown to the model: unknown\.weight"):
        load(checkpoint)


def test_derived_tensors_of_old_checkpoints_are_left_out(tmp_path):
    checkpoint = make_checkpoint(tmp_path)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_tensors(checkpoint, lambda tensors: tensors.update({name: torch.zeros(8)}))

    load(checkpoint)


def test_wrong_shape_is_told_with_both(tmp_path):
    checkpoint = make_checkpoint(tmp_path)
    change_tensors(checkpoint, lambda t: t.update({"model.norm.weight": torch.zeros(63)}))

    with pytest.raises(StartupError, match=r"model\.norm\.weight has shape \[63\].*\[64\]"):
        load(checkpoint)


def test_integer_weights_are_refused(tmp_path):
    checkpoint = make_checkpoint(tmp_path)
    integers = {"model.norm.weight": torch.zeros(64, dtype=torch.int8)}
    change_tensors(checkpoint, lambda tensors: tensors.update(integers))

    with pytest.raises(StartupError, match=r"model\.norm\.weight is stored as I8"):
        load(checkpoint)


def test_tied_model_with_an_identical_head_loads_silently(tmp_path):
    checkpoint = make_checkpoint(tmp_path, TinyModel(tied=True))
    (prompt,) = prompts(1, least=20, most=20)
    expected = prompt_logits(checkpoint, prompt, FLOAT32)
    change_tensors(
        checkpoint,
        lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}),
    )

    with capture_logs() as logs:
        logits = prompt_logits(checkpoint, prompt, FLOAT32)

    assert not logs
    assert torch.equal(logits, expected)


def test_tied_model_with_another_head_ignores_it_with_a_warning(tmp_path):
    checkpoint = make_checkpoint(tmp_path, TinyModel(tied=True))
    (prompt,) = prompts(1, least=20, most=20)
    expected = prompt_logits(checkpoint, prompt, FLOAT32)
    change_tensors(
        checkpoint,
        lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1.0}),
    )

    with capture_logs() as logs:
        logits = prompt_logits(checkpoint, prompt, FLOAT32)

    assert [entry["ignored"] for entry in logs] == ["lm_head.weight"]
    assert torch.equal(logits, expected)


def test_untied_model_without_a_head_is_refused(tmp_path):
    checkpoint = make_checkpoint(tmp_path, TinyModel(tied=True))
    change_config(checkpoint, tie_word_embeddings=False)

    with pytest.raises(StartupError, match=r"lm_head\.weight \(1 in all\)"):
        load(checkpoint)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_two_ranks_hold_the_model_between_them(tmp_path, family):
    checkpoint = make_checkpoint(tmp_path, TinyModel(family=family, attention_bias=True))
    whole = load(checkpoint)
    ranks = [load(checkpoint, Partition(rank=rank, size=2)) for rank in range(2)]
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))

    partial = [rank.layers[0].feed_forward(x) for rank in ranks]
    heads = [rank.layers[0].attention.qkv(x).view(5, -1, 16) for rank in ranks]
    all_heads = whole.layers[0].attention.qkv(x).view(5, -1, 16)

    torch.testing.assert_close(sum(partial), whole.layers[0].feed_forward(x))
    for first, last in ((0, 4), (4, 6), (6, 8)):
        halves = [rank_heads[:, first // 2 : last // 2] for rank_heads in heads]
        torch.testing.assert_close(torch.cat(halves, dim=1), all_heads[:, first:last])


def test_heads_that_do_not_divide_are_refused(tmp_path):
    extra = {"num_attention_heads": 6, "num_key_value_heads": 3}
    checkpoint = make_checkpoint(tmp_path, TinyModel(extra=extra))

    with pytest.raises(StartupError, match=r"3 key-value heads can't be divided over 2 devices"):
        load(checkpoint, Partition(rank=0, size=2))
