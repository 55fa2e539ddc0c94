"""Output matrices that are the embedding, and those that should be there and are not."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import torch
from antiphon.v1.inference_pb2_grpc import InferenceServiceStub
from safetensors.torch import load_file, save_file

from support.engine_zygote import forked
from support.greedy_reference import reference_outputs
from support.greedy_requests import greedy_request
from support.serve_command import Command, serve_runner
from support.tiny_checkpoints import TinyModel, make_checkpoint, prompts
from support.tiny_tokenizers import save_byte_level_tokenizer

LIMIT_S = 60.0
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
PROMPTS = prompts(8, least=5, most=40)
WARNING = "output matrix ignored"


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def as_it_is(directory: Path) -> None:
    assert HEAD not in load_file(directory / "model.safetensors")


def add_the_same_head(directory: Path) -> None:
    change_tensors(directory, lambda t: t.update({HEAD: t[EMBEDDING].clone()}))


def add_another_head(directory: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    change_tensors(
        directory,
        lambda t: t.update({HEAD: torch.randn(t[EMBEDDING].shape, generator=generator)}),
    )


def untie_without_a_head(directory: Path) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": False}))


@dataclass(frozen=True, slots=True)
class Started:
    """A server of each variant, and what the tied model says by another library."""

    expected: list[list[int]]
    commands: dict[str, Command]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    directory = tmp_path_factory.mktemp("tied")
    tied = save_byte_level_tokenizer(make_checkpoint(directory / "tied", TinyModel(tied=True)))
    engine_command = forked("antiphon_engine")
    with serve_runner(directory, tied, engine_command=engine_command) as runner:
        commands = {}
        for change in (as_it_is, add_the_same_head, add_another_head, untie_without_a_head):
            name = change.__name__
            changed = shutil.copytree(tied, directory / name)
            change(changed)
            commands[name] = runner.start("--model", str(changed))
        yield Started(reference_outputs(tied, PROMPTS), commands)


@pytest.mark.parametrize(
    ("change", "warns"),
    [(as_it_is, False), (add_the_same_head, False), (add_another_head, True)],
)
def test_tied_model_is_served_as_its_configuration_says(
    started: Started, change: Callable[[Path], None], warns: bool
) -> None:
    command = started.commands[change.__name__]
    outputs, streamed = [], []
    with grpc.insecure_channel(command.read_address()) as channel:
        stub = InferenceServiceStub(channel)
        for prompt in PROMPTS:
            request = greedy_request(prompt, ignore_eos=True)
            outputs.append([*stub.Generate(request, timeout=LIMIT_S).outputs[0].token_ids])
            responses = list(stub.StreamGenerate(request, timeout=LIMIT_S))
            streamed.append([i for response in responses for i in response.delta.token_ids])

    exit_status, log = command.end()

    assert outputs == streamed == started.expected
    assert exit_status == 0
    assert (WARNING in log) == warns
    assert (HEAD in log) == warns


def test_untied_model_without_its_output_matrix_is_not_served(started: Started) -> None:
    command = started.commands[untie_without_a_head.__name__]

    out, log = command.process.communicate(timeout=LIMIT_S)

    assert command.process.returncode == 2
    assert not out
    assert "Traceback" not in log
    assert HEAD in log.strip().splitlines()[-1]
