"""How much memory Antiphon's processes may take together, beside what they took."""

from collections.abc import Iterator, Mapping, Sequence

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.checkpoint.fields import Fields
from antiphon_engine.checkpoint.shards import stored_kinds
from antiphon_engine.cpu.products import plan_products
from antiphon_engine.model.config import parse_model_config
from antiphon_engine.quantization import Quantization
from bench.cpu_peers.catalog import SERVER, Engine, Machine, own_settings
from bench.cpu_peers.measuring import Figures

_REST_BYTES = 1_000_000_000
_BFLOAT16_BYTES = 2


def bar_mb(engine: Engine, machine: Machine) -> int:
    """Returns weights in their form, one plain embedding, the pool of the cache and a gigabyte."""
    config = EngineConfig(**own_settings(engine.weights, machine))
    model = parse_model_config(Fields.read(machine.checkpoint / "config.json"))
    products = plan_products(
        model,
        dtype="bfloat16",
        quantization=Quantization(config.quantization),
        kinds=stored_kinds(machine.checkpoint),
    )
    num_bytes = sum(matrix.num_bytes for matrix in products.matrices())
    num_bytes += model.vocabulary_size * model.hidden_size * _BFLOAT16_BYTES
    return round((num_bytes + config.kv_cache_bytes + _REST_BYTES) / 1e6)


def memory_lines(
    engines: Sequence[Engine], figures: Mapping[str, Figures], machine: Machine
) -> Iterator[str]:
    """Yields a line for each server of Antiphon: its peak, the bar, and each process's share."""
    for engine in engines:
        seen = figures[engine.name]
        if engine.product != "antiphon" or engine.kind != SERVER or seen.failure:
            continue
        ordered = sorted(seen.memory_shares_mb.items(), key=lambda share: -share[1])
        shares = ", ".join(f"{role} {size}" for role, size in ordered)
        bar = bar_mb(engine, machine)
        verdict = "met" if seen.peak_pss_mb <= bar else "MISSED"
        peak = f"{engine.name}: peak PSS {seen.peak_pss_mb:.0f} MB"
        yield f"{peak}, bar {bar} MB, {verdict} ({shares})"
