"""Checkpoints in several files, of which something is amiss: no server comes up with half a model.

What each fault is called is tested beside the loader; here is what somebody sees who starts one.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from support.canary import Canary
from support.engine_zygote import forked
from support.greedy_reference import reference_outputs
from support.greedy_requests import served_outputs
from support.real_server import real_server
from support.serve_command import Runner, serve_runner
from support.tiny_checkpoints import TinyModel, make_checkpoint, prompts
from support.tiny_tokenizers import save_byte_level_tokenizer

INDEX = "model.safetensors.index.json"
GHOST = "model.layers.9.ghost.weight"
KNOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sharded") / "tiny"
    make_checkpoint(directory, TinyModel(max_shard_size="200KB"))
    assert len(list(directory.glob("*.safetensors"))) >= 3
    return save_byte_level_tokenizer(directory)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory, sharded: Path) -> Iterator[Runner]:
    directory, engine_command = tmp_path_factory.mktemp("served"), forked("antiphon_engine")
    with serve_runner(directory, sharded, engine_command=engine_command) as made:
        yield made


def second_shard(directory: Path) -> Path:
    return sorted(directory.glob("*.safetensors"))[1]


def change_index(directory: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((directory / INDEX).read_text())
    change(index["weight_map"])
    (directory / INDEX).write_text(json.dumps(index))


def delete_shard(directory: Path) -> str:
    shard = second_shard(directory)
    shard.unlink()
    return shard.name


def rename_shard(directory: Path) -> str:
    shard = second_shard(directory)
    shard.rename(directory / "model-2.safetensors")
    return shard.name


def cut_shard(directory: Path) -> str:
    shard = second_shard(directory)
    shard.write_bytes(shard.read_bytes()[:-1000])
    return shard.name


def index_a_ghost(directory: Path) -> str:
    change_index(directory, lambda files: files.update({GHOST: second_shard(directory).name}))
    return GHOST


def forget_in_the_index(directory: Path) -> str:
    change_index(directory, lambda files: files.pop(KNOWN))
    return KNOWN


def lose_index_and_shard(directory: Path) -> str:
    names = json.loads((directory / INDEX).read_text())["weight_map"]
    shard = second_shard(directory)
    lost = sorted(name for name, file in names.items() if file == shard.name)
    (directory / INDEX).unlink()
    shard.unlink()
    return f"{', '.join(lost[:3])}{', …' if len(lost) > 3 else ''} ({len(lost)} in all)"


FAULTS = (
    delete_shard,
    rename_shard,
    cut_shard,
    index_a_ghost,
    forget_in_the_index,
    lose_index_and_shard,
)


def test_every_fault_ends_the_start_and_is_named(
    runner: Runner, sharded: Path, tmp_path: Path
) -> None:
    started = []
    for fault in FAULTS:
        directory = shutil.copytree(sharded, tmp_path / fault.__name__)
        named = fault(directory)
        started.append((fault.__name__, named, runner.start("--model", str(directory))))

    for name, named, command in started:
        out, log = command.process.communicate(timeout=60)
        assert command.process.returncode == 2, name
        assert not out
        assert "Traceback" not in log
        assert named in log.strip().splitlines()[-1], name


def lose_the_index(directory: Path) -> None:
    (directory / INDEX).unlink()


def add_a_stray(directory: Path) -> None:
    save_file({"stray.weight": torch.ones(3)}, directory / "stray.safetensors")


@pytest.mark.parametrize("change", [lose_the_index, add_a_stray])
async def test_model_whose_tensors_are_all_there_is_served_whole(
    sharded: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    directory = shutil.copytree(sharded, tmp_path / "tiny")
    change(directory)
    asked = prompts(4, least=5, most=40)
    async with real_server(tmp_path, directory) as server:
        canary = await Canary.of(server)

        answers = await served_outputs(server, asked, ignore_eos=True)

        await canary.check()
    outputs = [list(answer.output.token_ids) for answer in answers]
    assert outputs == reference_outputs(sharded, asked)
