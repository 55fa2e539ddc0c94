"""Weights from a seed."""

import torch

from antiphon_engine.model.random_weights import fill_randomly
from antiphon_engine.model.weights import ParameterSink, WeightTarget


class Kept:
    def __init__(self):
        self.values = None

    def store(self, values):
        self.values = values.clone()


def fill(seed, dtype=torch.float32):
    matrix, norm, part = torch.zeros(64, 32, dtype=dtype), torch.zeros(32), Kept()
    whole = (slice(None), slice(None))
    targets = {
        "layers.0.up.weight": WeightTarget(
            sink=ParameterSink(matrix), source_shape=(64, 32), source_part=whole
        ),
        "layers.0.norm.weight": WeightTarget(
            sink=ParameterSink(norm), source_shape=(32,), source_part=(slice(None),)
        ),
        "layers.0.down.weight": WeightTarget(
            sink=part, source_shape=(64, 32), source_part=(slice(0, 16), slice(None))
        ),
    }
    told = []
    fill_randomly(targets, seed=seed, on_progress=lambda *progress: told.append(progress))
    return matrix, norm, part.values, told


def test_every_target_is_filled_and_norms_are_one():
    matrix, norm, part, told = fill(3)

    assert 0.015 < matrix.std() < 0.025
    assert norm.tolist() == [1.0] * 32
    assert part.shape == (16, 32)
    assert 0.015 < part.std() < 0.025
    assert told == [("load", 1, 3), ("load", 2, 3), ("load", 3, 3)]


def test_seed_alone_decides():
    assert torch.equal(fill(3)[0], fill(3)[0])
    assert torch.equal(fill(3)[2], fill(3)[2])
    assert not torch.equal(fill(3)[0], fill(4)[0])


def test_matrices_differ_from_each_other():
    matrix, _, part, _ = fill(3)

    assert not torch.equal(matrix[:16], part)
