"""How many threads computations on the CPU should use."""

import os
from collections.abc import Set as AbstractSet
from pathlib import Path

from antiphon_engine.control_groups import least_quota_cores


def num_physical_cores(allowed: AbstractSet[int] | None = None, *, root: Path = Path("/")) -> int:
    """Returns the physical cores that this process may use, at least 1.

    Two threads of one core share its arithmetic units: a second one adds nothing but waiting. A
    control group's share of processor time counts as that many cores.

    Args:
        allowed: Logical processors; None: those of this process.
        root: Where `proc` and `sys` lie.
    """
    processors = os.sched_getaffinity(0) if allowed is None else allowed
    cores = {_core_of(processor, root) for processor in processors}
    return max(1, min(len(cores), least_quota_cores(root) or len(cores)))


def _core_of(processor: int, root: Path) -> tuple[str, str]:
    topology = root / f"sys/devices/system/cpu/cpu{processor}/topology"
    try:
        package = (topology / "physical_package_id").read_text().strip()
        return package, (topology / "core_id").read_text().strip()
    except OSError:
        return "unknown", str(processor)
