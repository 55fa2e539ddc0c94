import resource

import pytest
from structlog.testing import capture_logs

from antiphon_engine.api.config import EngineConfig
from antiphon_engine.api.errors import StartupError
from antiphon_engine.cpu_topology import num_physical_cores
from antiphon_engine.device import Device
from antiphon_engine.executor import Executor
from antiphon_engine.memory_plan import (
    AvailableMemory,
    MemoryNeeds,
    available_memory_bytes,
    plan_memory,
)
from support.tiny_checkpoints import TinyModel, make_checkpoint

MIB = 1 << 20
NEEDS = MemoryNeeds(weights_bytes=100 * MIB, kv_token_bytes=1024, step_bytes=10 * MIB)


def plan(
    *,
    model_context_tokens=1000,
    available_bytes=1000 * MIB,
    host_bytes=None,
    needs=NEEDS,
    **settings,
):
    """Without `host_bytes`, the device computes in the host's memory."""
    config = EngineConfig(**({"block_tokens": 32} | settings))
    return plan_memory(
        config,
        needs,
        model_context_tokens=model_context_tokens,
        available=AvailableMemory(
            device_bytes=available_bytes,
            host_bytes=available_bytes if host_bytes is None else host_bytes,
            is_shared=host_bytes is None,
        ),
    )


def test_cache_is_sized_by_bytes_with_scratch_on_top():
    memory = plan(kv_cache_bytes=64 * 32 * 1024 + 5)

    assert memory.num_blocks == 65
    assert memory.kv_cache_tokens == 64 * 32
    assert memory.context_tokens == 1000


def test_cache_is_sized_by_tokens_where_they_are_given():
    memory = plan(kv_cache_tokens=1029, kv_cache_bytes=1)

    assert memory.kv_cache_tokens == 1024


def test_context_of_the_checkpoint_is_shortened_to_the_cache_and_that_is_said():
    with capture_logs() as logs:
        memory = plan(kv_cache_tokens=100)

    assert memory.context_tokens == 96
    (entry,) = logs
    assert entry["log_level"] == "warning"
    assert entry["context_tokens"] == 96
    assert entry["model_context_tokens"] == 1000
    assert entry["kv_cache_bytes_for_all"] == 32 * 32 * 1024


def test_context_that_was_asked_for_is_not_shortened():
    with pytest.raises(StartupError, match=r"needed 10 blocks .* available 3 .*fits: 96"):
        plan(kv_cache_tokens=100, max_context_tokens=300)


def test_context_that_fits_the_last_block_is_served():
    assert plan(kv_cache_tokens=320, max_context_tokens=320).context_tokens == 320


def test_context_beyond_the_model_is_refused():
    with pytest.raises(StartupError, match=r"1001.*at most 1000"):
        plan(max_context_tokens=1001)


@pytest.mark.parametrize("settings", [{"kv_cache_tokens": 31}, {"kv_cache_bytes": 32 * 1024 - 1}])
def test_cache_without_a_block_is_refused(settings):
    with pytest.raises(StartupError, match=r"holds no block.*32 tokens"):
        plan(**settings)


def test_too_little_memory_is_told_with_numbers_and_the_cache_that_fits():
    with pytest.raises(StartupError) as raised:
        plan(kv_cache_bytes=500 * MIB, available_bytes=200 * MIB)

    assert "needed 610 MiB (weights 100 MiB, KV cache 500 MiB, steps 10 MiB)" in str(raised.value)
    assert "available 200 MiB" in str(raised.value)
    fits = (90 * MIB // (32 * 1024) - 1) * 32
    assert f"fits: {fits} tokens" in str(raised.value)
    plan(kv_cache_tokens=fits, available_bytes=200 * MIB)


def test_weights_that_do_not_fit_are_told():
    with pytest.raises(StartupError, match="not even the weights fit"):
        plan(available_bytes=50 * MIB)


def test_host_cache_is_sized_in_whole_blocks():
    assert plan(kv_cache_tokens=64, host_cache_bytes=3 * 32 * 1024 + 5).num_host_blocks == 3
    assert plan(kv_cache_tokens=64).num_host_blocks == 0


def test_host_cache_without_a_block_is_refused():
    with pytest.raises(StartupError, match=r"host_cache_bytes = 5 holds no block.*32768 bytes"):
        plan(host_cache_bytes=5)


def test_host_cache_counts_where_the_device_computes_in_main_memory():
    needs = MemoryNeeds(
        weights_bytes=100 * MIB, kv_token_bytes=1024, step_bytes=10 * MIB, num_staged_blocks=32
    )

    with pytest.raises(StartupError) as raised:
        plan(
            needs=needs,
            kv_cache_bytes=50 * MIB,
            host_cache_bytes=60 * MIB,
            available_bytes=220 * MIB,
        )

    assert "needed 221 MiB (weights 100 MiB, KV cache 50 MiB, host cache 60 MiB, steps 11 MiB)" in (
        str(raised.value)
    )
    assert "largest KV cache that fits" in str(raised.value)
    plan(needs=needs, kv_cache_bytes=48 * MIB, host_cache_bytes=60 * MIB, available_bytes=220 * MIB)


def test_host_cache_that_leaves_no_room_for_any_other_is_named():
    with pytest.raises(StartupError, match=r"lower engine\.host_cache_bytes"):
        plan(host_cache_bytes=900 * MIB)


def test_host_cache_is_checked_by_itself_where_the_device_has_its_own_memory():
    with pytest.raises(
        StartupError, match=r"not enough main memory: needed 300 MiB .* available 200 MiB"
    ):
        plan(kv_cache_bytes=500 * MIB, host_cache_bytes=300 * MIB, host_bytes=200 * MIB)

    plan(kv_cache_bytes=500 * MIB, host_cache_bytes=300 * MIB, host_bytes=400 * MIB)


def test_memory_is_checked_before_weights_are_read(tmp_path):
    checkpoint = make_checkpoint(tmp_path)
    (checkpoint / "model.safetensors").write_bytes(b"broken")

    with pytest.raises(StartupError, match="not enough memory"):
        Executor(EngineConfig(kv_cache_bytes=1 << 60, num_threads=1), checkpoint)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"device": "tpu"}, "tpu"), ({"dtype": "float16"}, "float16")],
)
def test_what_is_not_built_is_refused_by_name(tmp_path, settings, named):
    checkpoint = make_checkpoint(tmp_path)

    with pytest.raises(StartupError, match=named):
        Executor(EngineConfig(**settings, num_threads=1), checkpoint)


def test_a_device_that_is_not_there_is_refused_by_name():
    with pytest.raises(StartupError, match=r"engine\.device is cuda, but PyTorch"):
        Device.open("cuda", has_cuda=lambda: False)


def test_estimated_weights_are_those_of_the_files(tmp_path):
    for family in ("llama", "qwen2", "qwen3"):
        for tied in (False, True):
            model = TinyModel(family=family, tied=tied, attention_bias=True)
            checkpoint = make_checkpoint(tmp_path / f"{family}{tied}", model)
            config = EngineConfig(num_threads=1, kv_cache_tokens=512, cpu_kernels="torch")
            executor = Executor(config, checkpoint)

            parameters = sum(p.numel() for p in executor._model.parameters())
            assert executor.model_config.num_parameters() == parameters


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_available_memory_is_the_machines(tmp_path):
    write(tmp_path, "proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   60 kB\n")

    assert available_memory_bytes(tmp_path) == 60 * 1024


def test_available_memory_is_the_control_groups_where_that_is_less(tmp_path):
    write(tmp_path, "proc/meminfo", "MemAvailable:   60 kB\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "9000\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "5000\n")
    write(tmp_path, "sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 700\n")

    assert available_memory_bytes(tmp_path) == 4700


def test_limit_of_any_control_group_around_the_process_counts(tmp_path):
    write(tmp_path, "proc/meminfo", "MemAvailable:   60 kB\n")
    write(tmp_path, "proc/self/cgroup", "4:memory:/elsewhere\n0::/system.slice/one.service\n")
    slice_ = "sys/fs/cgroup/system.slice"
    for folder, limit in ((slice_, "9000"), (f"{slice_}/one.service", "max")):
        write(tmp_path, f"{folder}/memory.max", f"{limit}\n")
        write(tmp_path, f"{folder}/memory.current", "5000\n")

    assert available_memory_bytes(tmp_path) == 4000
    write(tmp_path, f"{slice_}/one.service/memory.max", "7000\n")
    assert available_memory_bytes(tmp_path) == 2000


@pytest.mark.parametrize("place", ["/../../elsewhere", "nowhere", "/not/there"])
def test_control_group_that_cannot_be_seen_changes_nothing(tmp_path, place):
    write(tmp_path, "proc/meminfo", "MemAvailable:   60 kB\n")
    write(tmp_path, "proc/self/cgroup", f"0::{place}\n")
    write(tmp_path, "sys/elsewhere/memory.max", "0\n")
    write(tmp_path, "sys/elsewhere/memory.current", "0\n")

    assert available_memory_bytes(tmp_path) == 60 * 1024


def test_limit_of_a_control_group_of_version_1_counts(tmp_path):
    write(tmp_path, "proc/meminfo", "MemAvailable:   60 kB\n")
    write(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/one/two\n0::/\n")
    memory = "sys/fs/cgroup/memory"
    for folder, limit in ((memory, "9223372036854771712"), (f"{memory}/one/two", "9000")):
        write(tmp_path, f"{folder}/memory.limit_in_bytes", f"{limit}\n")
        write(tmp_path, f"{folder}/memory.usage_in_bytes", "5000\n")
        write(tmp_path, f"{folder}/memory.stat", "inactive_file 1\ntotal_inactive_file 700\n")

    assert available_memory_bytes(tmp_path) == 4700


def test_limit_of_a_container_of_version_1_is_at_the_root_that_it_sees(tmp_path):
    write(tmp_path, "proc/meminfo", "MemAvailable:   60 kB\n")
    write(tmp_path, "proc/self/cgroup", "4:memory:/docker/0123\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9000\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n")

    assert available_memory_bytes(tmp_path) == 4000


@pytest.mark.parametrize("limited", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_limits_of_the_process_count(tmp_path, limited):
    write(tmp_path, "proc/meminfo", "MemAvailable:   60 kB\n")
    write(tmp_path, "proc/self/status", "VmSize:\t    7 kB\nVmData:\t    7 kB\n")

    def limit_of(kind):
        return (9 * 1024 if kind == limited else resource.RLIM_INFINITY), resource.RLIM_INFINITY

    assert available_memory_bytes(tmp_path, limit_of=limit_of) == 2 * 1024


def test_control_group_without_limit_changes_nothing(tmp_path):
    write(tmp_path, "proc/meminfo", "MemAvailable:   60 kB\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")

    assert available_memory_bytes(tmp_path) == 60 * 1024


def write_cpu(root, cpu, core, package=0):
    write(root, f"sys/devices/system/cpu/cpu{cpu}/topology/core_id", f"{core}\n")
    write(root, f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", f"{package}\n")


def test_threads_of_one_core_count_once(tmp_path):
    for cpu, core, package in ((0, 0, 0), (1, 1, 0), (2, 0, 0), (3, 1, 0), (4, 0, 1)):
        write_cpu(tmp_path, cpu, core, package)

    assert num_physical_cores({0, 1, 2, 3}, root=tmp_path) == 2
    assert num_physical_cores({0, 2}, root=tmp_path) == 1
    assert num_physical_cores({0, 1, 2, 3, 4}, root=tmp_path) == 3


def test_control_groups_share_of_time_limits_the_cores(tmp_path):
    for cpu in range(4):
        write_cpu(tmp_path, cpu, cpu)
    write(tmp_path, "sys/fs/cgroup/cpu.max", "150000 100000\n")

    assert num_physical_cores({0, 1, 2, 3}, root=tmp_path) == 2


def test_least_share_of_time_of_all_control_groups_limits_the_cores(tmp_path):
    for cpu in range(4):
        write_cpu(tmp_path, cpu, cpu)
    write(tmp_path, "proc/self/cgroup", "0::/system.slice/one.service\n")
    for folder, quota in (("", "400000"), ("/system.slice", "150000"), ("/system.slice/x", "1")):
        write(tmp_path, f"sys/fs/cgroup{folder}/cpu.max", f"{quota} 100000\n")

    assert num_physical_cores({0, 1, 2, 3}, root=tmp_path) == 2


@pytest.mark.parametrize(("quota", "num_cores"), [("150000", 2), ("-1", 4), ("1000", 1)])
def test_share_of_time_of_a_control_group_of_version_1_limits_the_cores(tmp_path, quota, num_cores):
    for cpu in range(4):
        write_cpu(tmp_path, cpu, cpu)
    write(tmp_path, "proc/self/cgroup", "2:cpuacct,cpu:/one\n3:cpuset:/two\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/cpu/one/cpu.cfs_quota_us", f"{quota}\n")
    write(tmp_path, "sys/fs/cgroup/cpu/one/cpu.cfs_period_us", "100000\n")

    assert num_physical_cores({0, 1, 2, 3}, root=tmp_path) == num_cores


def test_unknown_topology_counts_processors(tmp_path):
    assert num_physical_cores({0, 1, 5}, root=tmp_path) == 3
