"""Which kernels a model's products use: when that is measured, and what is made of the figures."""

import json
import math

import pytest

from antiphon_engine import _kernels
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.cpu.kernel_choice import (
    KernelChooser,
    candidates,
    quickest,
    representative_shapes,
)
from antiphon_engine.cpu.product_timing import ROW_COUNTS, Shape, time_products
from antiphon_engine.cpu.products import plan_products
from antiphon_engine.model.config import parse_model_config
from antiphon_engine.quantization import Quantization
from support.tiny_checkpoints import TinyModel, make_checkpoint

BEST = _kernels.best_isa()
OTHERS = candidates("int8", BEST)[1:]


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("tiny") / "model", TinyModel())
    config = parse_model_config(Fields.read(checkpoint / "config.json"))
    return plan_products(config, dtype="bfloat16", quantization=Quantization.INT4, kinds={})


class FakeTimes:
    """Says that an instruction set is twice as quick as the others."""

    def __init__(self, quick):
        self.quick = quick
        self.num_calls = 0

    def __call__(self, shapes, isas):
        self.num_calls += 1
        return {
            shape.weight_format: {
                isa: [1.0 if isa == self.quick else 2.0] * len(ROW_COUNTS)
                for isa in isas[shape.weight_format]
            }
            for shape in shapes
        }


@pytest.fixture
def times():
    if not OTHERS:
        pytest.skip("this machine has nothing to choose from")
    return FakeTimes(OTHERS[0])


@pytest.fixture
def chooser(tmp_path, times):
    return KernelChooser(directory=tmp_path / "packed", measure=times, min_bytes=0)


def kept_file(chooser):
    (path,) = chooser.directory.iterdir()
    return path


def test_first_start_measures_and_later_ones_read(chooser, times, products):
    chosen = chooser.choose(products, 1)

    assert chosen == {"int4": OTHERS[0], "int8": OTHERS[0]}
    assert chooser.choose(products, 1) == chosen
    assert times.num_calls == 1


def test_another_number_of_threads_is_measured_for_itself(chooser, times, products):
    chooser.choose(products, 1)

    chooser.choose(products, 2)

    assert times.num_calls == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: b"\xff" + kept,
        lambda kept: kept[: len(kept) // 2],
        lambda kept: b"[]",
        lambda kept: b'{"more": ' + b"[" * 9999,
        lambda kept: json.dumps({**json.loads(kept), "facts": "another machine"}).encode(),
        lambda kept: kept.replace(OTHERS[0].encode(), b"tensor_cores"),
        lambda kept: json.dumps({**json.loads(kept), "chosen": {"int8": BEST}}).encode(),
    ],
)
def test_file_that_is_damaged_or_foreign_is_measured_anew(chooser, times, products, change):
    chosen = chooser.choose(products, 1)
    path = kept_file(chooser)
    whole = path.read_bytes()
    path.write_bytes(change(whole))

    assert chooser.choose(products, 1) == chosen

    assert times.num_calls == 2
    assert path.read_bytes() == whole


def test_choice_holds_where_it_cannot_be_kept(tmp_path, times, products):
    (tmp_path / "packed").write_text("no directory")
    chooser = KernelChooser(directory=tmp_path / "packed", measure=times, min_bytes=0)

    assert chooser.choose(products, 1)["int8"] == OTHERS[0]


def test_small_models_take_the_best_by_its_name(tmp_path, times, products):
    chooser = KernelChooser(directory=tmp_path / "packed", measure=times)

    assert chooser.choose(products, 1) == {"int4": BEST, "int8": BEST}
    assert times.num_calls == 0


@pytest.mark.parametrize(
    ("of_other", "chosen"),
    [
        ([1.0, 1.0, 1.0], "named"),
        ([0.93, 0.93, 0.93], "named"),
        ([0.9, 0.9, 0.9], "other"),
        # Half the time of few rows doesn't outweigh three times that of many.
        ([0.5, 1.0, 3.0], "named"),
        ([0.5, 1.0, 1.5], "other"),
    ],
)
def test_other_kernels_have_to_be_quicker_by_a_tenth_over_all_row_counts(of_other, chosen):
    figures = {"named": [1.0, 1.0, 1.0], "other": of_other}

    assert quickest(figures, ["named", "other"]) == chosen


@pytest.mark.parametrize("weight_format", ["bfloat16", "int8", "int6", "int5", "int4"])
def test_candidates_run_here_and_read_the_same_rows(weight_format):
    found = candidates(weight_format, BEST)

    assert found[0] == BEST
    assert all(_kernels.has_isa(isa) for isa in found)
    assert len(set(found)) == len(found)
    if weight_format in ("bfloat16", "int8"):
        assert not any("vnni" in isa for isa in found)
    matrices = [_kernels.PackedMatrix(1, 32, weight_format=weight_format, isa=isa) for isa in found]
    assert len({matrix.input_type for matrix in matrices}) == 1


def test_largest_matrix_stands_for_its_form(products):
    shapes = representative_shapes(products)

    assert [shape.weight_format for shape in shapes] == ["int4", "int8"]
    gate_up, head = products.layers[0].gate_up, products.head
    assert [(shape.num_out, shape.num_in) for shape in shapes] == [
        (matrix.num_out, matrix.num_in) for matrix in (gate_up, head)
    ]


def test_every_candidate_is_measured_for_every_number_of_rows():
    shapes = [
        Shape(num_out=70, num_in=64, weight_format=weight_format)
        for weight_format in ("bfloat16", "int8")
    ]
    isas = {shape.weight_format: candidates(shape.weight_format, BEST) for shape in shapes}

    figures = time_products(shapes, isas)

    for weight_format, by_isa in figures.items():
        assert list(by_isa) == isas[weight_format]
        for times_s in by_isa.values():
            assert len(times_s) == len(ROW_COUNTS)
            assert all(0 < time_s < math.inf for time_s in times_s)
