import pytest

from antiphon_engine import _kernels
from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.device import CPU, Device
from antiphon_engine.model.config import parse_model_config
from antiphon_engine.model.partition import Partition
from antiphon_engine.model.registry import default_registry
from antiphon_engine.model_plan import ModelPlanner, asked_quantization
from antiphon_engine.quantization import ON_CUDA, Quantization
from support.tiny_checkpoints import TinyModel, make_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("llama"), TinyModel(family="llama"))


def plan(checkpoint, device=CPU, **settings):
    planner = ModelPlanner(EngineConfig(**settings), device=device, part=Partition(), registry=None)
    return planner.plan(parse_model_config(Fields.read(checkpoint / "config.json")), checkpoint)


def test_weights_are_counted_as_they_are_kept(checkpoint):
    sizes = [
        plan(checkpoint, cpu_kernels="auto", dtype=dtype, quantization=quantization).weights_bytes
        for dtype, quantization in (
            ("float32", "none"),
            ("bfloat16", "none"),
            ("bfloat16", "int8"),
            ("bfloat16", "int4"),
        )
    ]

    assert sizes[0] == 2 * sizes[1]
    assert sizes[1] > 1.7 * sizes[2]
    assert sizes[2] > sizes[3]


@pytest.mark.parametrize(("asked", "told"), [("auto", ""), ("none", ""), ("int8", "int8")])
def test_model_says_how_it_is_quantized(checkpoint, asked, told):
    assert plan(checkpoint, cpu_kernels="auto", quantization=asked).quantization == told


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quantization": "int2"}, r"'int2' is not supported: auto, none, int8, int4, fp8"),
        (
            {"quantization": "fp8"},
            r"fp8 is not supported with engine\.device = cpu: .*int4 are; .*cuda",
        ),
        ({"cpu_kernels": "torch", "quantization": "fp8"}, r"with engine\.cpu_kernels = torch"),
        ({"cpu_kernels": "sse"}, r"'sse' is not known: auto, torch, portable"),
        ({"cpu_kernels": "torch", "quantization": "int8"}, r"with engine\.cpu_kernels = torch"),
        ({"dtype": "float8"}, r"engine\.dtype 'float8'"),
        (
            {"kv_cache_dtype": "float8_e4m3"},
            r"kv_cache_dtype = float8_e4m3 is not supported: not with engine\.device = cpu; .*cuda",
        ),
        (
            {"cpu_kernels": "torch", "kv_cache_dtype": "float8_e4m3"},
            r"not with engine\.cpu_kernels = torch",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(checkpoint, settings, words):
    with pytest.raises(StartupError, match=words):
        plan(checkpoint, **({"cpu_kernels": "auto"} | settings))


@pytest.mark.parametrize("quantization", ["int4", "fp8"])
def test_torch_quantizes_nothing_on_cuda(checkpoint, quantization):
    with pytest.raises(StartupError, match=r"is not supported with PyTorch's operators on cuda"):
        plan(checkpoint, Device("cuda"), cpu_kernels="auto", quantization=quantization)


def test_kernels_for_cuda_quantize_as_fp8_alone():
    def asked(quantization):
        config = EngineConfig(quantization=quantization)
        return asked_quantization(config, ON_CUDA, where="engine.device = cuda")

    assert asked("fp8") is Quantization.FP8
    refused = r"int8 is not supported with engine\.device = cuda"
    with pytest.raises(StartupError, match=refused + ".* with engine\\.device = cpu and"):
        asked("int8")


def test_registered_models_are_quantized_by_nothing(checkpoint):
    config = EngineConfig(quantization="int8", cpu_kernels="auto")
    planner = ModelPlanner(config, device=CPU, part=Partition(), registry=default_registry())
    model = parse_model_config(Fields.read(checkpoint / "config.json"))

    with pytest.raises(StartupError, match=r"int8 is not supported with models of a registry"):
        planner.plan(model, checkpoint)


def test_instruction_set_that_the_machine_lacks_is_refused(checkpoint):
    # Where it has all of them, nothing can be refused.
    lacking = [isa for isa in ("avx512_bf16", "amx") if not _kernels.has_isa(isa)]
    for isa in lacking:
        with pytest.raises(StartupError, match=f"is {isa}, but this machine goes up to"):
            plan(checkpoint, cpu_kernels=isa, dtype="bfloat16")
