"""cgroup files, `/proc/cpuinfo`, affinity."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllama.machine.cpu import (
    Cgroups,
    apply_quota,
    count_physical_cores,
    detect_cpu,
    measure_usable_ram,
    parse_cpu_list,
    parse_cpu_max,
    parse_cpuinfo,
    parse_memory_limit,
    parse_page_cache,
    parse_self_cgroup,
    read_cgroup,
)

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", None),
        ("200000 100000", 2.0),
        ("50000 100000\n", 0.5),
        ("", None),
        ("x", None),
    ],
)
def test_cpu_max(text: str, cores: float | None) -> None:
    assert parse_cpu_max(text) == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [("-1", "100000", None), ("150000", "100000", 1.5), ("", "", None), ("100", "0", None)],
)
def test_cfs_quota(quota: str, period: str, cores: float | None) -> None:
    assert parse_cpu_max(f"{quota} {period}") == cores


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max", None), ("9223372036854771712", None), ("2147483648\n", 2 * GIB), ("", None)],
)
def test_memory_limit(text: str, limit: int | None) -> None:
    assert parse_memory_limit(text) == limit


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"),
    [(8, None, 8), (8, 2.0, 2), (8, 1.5, 2), (8, 0.1, 1), (2, 16.0, 2)],
)
def test_apply_quota(affinity: int, quota: float | None, cores: int) -> None:
    assert apply_quota(affinity, quota) == cores


@pytest.mark.parametrize(
    ("stat", "clean"),
    [
        ("anon 5\nfile 9\ninactive_file 4000\nactive_file 96\n", 4096),  # v2
        ("inactive_file 4000\nactive_file 96\nshmem 700\n", 4096),  # tmpfs is not among them
        ("inactive_file 400\nfile_dirty 90\nfile_writeback 10\n", 300),
        ("inactive_file 1\ntotal_inactive_file 70\ntotal_active_file 7\n", 77),  # v1, groups below
        ("inactive_file 1\ntotal_inactive_file 70\ndirty 3\ntotal_dirty 20\n", 50),
        ("total_inactive_file 5\ntotal_dirty 9\n", 0),
        ("inactive_file many\n\nactive_file\n", 0),
        ("", 0),
    ],
)
def test_the_page_cache_that_can_be_dropped_at_once(stat: str, clean: int) -> None:
    assert parse_page_cache(stat)[0] == clean


def test_the_page_cache_that_has_to_be_written() -> None:
    assert parse_page_cache("active_file 90\nfile_dirty 30\nfile_writeback 9\n") == (51, 39)
    assert parse_page_cache("total_active_file 20\ntotal_dirty 30\n") == (0, 20)


def test_self_cgroup() -> None:
    v1 = "12:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n1:name=systemd:/x\n"
    assert parse_self_cgroup(v1)["cpu"] == "/docker/abc"
    assert parse_self_cgroup("0::/system.slice/a:b.service\n") == {"": "/system.slice/a:b.service"}


def test_cpuinfo() -> None:
    x86 = (
        "processor\t: 0\nmodel name\t: AMD EPYC 7B13\nflags\t\t: fpu avx2 f16c\n\n"
        "processor\t: 1\nmodel name\t: other\nflags\t\t: none\n"
    )
    arm = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd asimddp\nCPU part\t: 0xd40\n"
    assert parse_cpuinfo(x86) == ("AMD EPYC 7B13", frozenset({"fpu", "avx2", "f16c"}))
    assert parse_cpuinfo(arm) == ("", frozenset({"fp", "asimd", "asimddp"}))
    assert parse_cpuinfo("") == ("", frozenset())


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def test_cgroup_v2_takes_the_tightest_of_all_levels(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job.scope",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/user.slice/cpu.max": "100000 100000",
            "sys/fs/cgroup/user.slice/memory.max": "max",
            "sys/fs/cgroup/user.slice/job.scope/cpu.max": "400000 100000",
            "sys/fs/cgroup/user.slice/job.scope/memory.max": str(2 * GIB),
            "sys/fs/cgroup/user.slice/job.scope/memory.current": str(GIB),
            "sys/fs/cgroup/user.slice/job.scope/memory.stat": f"inactive_file {GIB // 2}",
        },
    )
    assert read_cgroup(tmp_path) == Cgroups(
        cores=1.0,
        memory_bytes=2 * GIB,
        memory_free_bytes=GIB + GIB // 2,
        memory_cached_bytes=GIB // 2,
    )


def test_cgroup_v2_in_a_container(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/cpu.max": "150000 100000",
            "sys/fs/cgroup/memory.max": str(GIB),
            "sys/fs/cgroup/memory.current": "1000",
        },
    )
    assert read_cgroup(tmp_path) == Cgroups(
        cores=1.5, memory_bytes=GIB, memory_free_bytes=GIB - 1000
    )


def test_cgroup_v1_whose_path_is_not_mounted_here(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
        },
    )
    assert read_cgroup(tmp_path) == Cgroups(
        cores=2.0, memory_bytes=4 * GIB, memory_free_bytes=3 * GIB
    )


def test_no_cgroup(tmp_path: Path) -> None:
    assert read_cgroup(tmp_path) == Cgroups()


def test_the_limit_counts_as_the_memory_there_is(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../outside",
            "proc/cpuinfo": "model name\t: Some CPU\nflags\t: avx2",
            "sys/fs/cgroup/cgroup.controllers": "memory",
            "sys/fs/cgroup/memory.max": "104857600",
            "sys/fs/cgroup/memory.current": "4857600",
        },
    )
    cpu = detect_cpu(tmp_path)
    assert (cpu.ram_total_bytes, cpu.ram_available_bytes) == (104857600, 100000000)
    assert (cpu.name, cpu.features) == ("Some CPU", frozenset({"avx2"}))
    assert cpu.cores >= 1


def test_pages_of_files_that_are_kept_are_not_available():
    total, available = measure_usable_ram(Cgroups())
    _, less = measure_usable_ram(Cgroups(), kept_bytes=total)
    assert available > 0
    assert less == 0


@pytest.mark.parametrize(
    ("cached_bytes", "kept_bytes", "available"),
    [
        (0, 0, 600),
        (300, 0, 600),
        (300, 100, 500),
        (100, 100, 500),
        (50, 100, 550),  # half of them were read by another group, which pays for them
        (0, 100, 600),
    ],
)
def test_kept_pages_count_once_in_a_control_group(cached_bytes, kept_bytes, available):
    limits = Cgroups(memory_bytes=1000, memory_free_bytes=600, memory_cached_bytes=cached_bytes)
    assert measure_usable_ram(limits, kept_bytes)[1] == available


@pytest.mark.parametrize(
    ("group", "left"),
    [
        # of the container and of the machine's half that holds it: limit, usage, cache
        ((2 * GIB, GIB, 0), (GIB, 0)),
        ((2 * GIB, GIB, GIB // 4), (GIB + GIB // 4, GIB // 4)),
        ((8 * GIB, GIB, 0), (2 * GIB, GIB)),  # the outer one is the fuller one
    ],
)
def test_of_nested_groups_the_smallest_limit_and_the_fullest_group_count(
    tmp_path, group: tuple[int, int, int], left: tuple[int, int]
) -> None:
    inner, outer = "sys/fs/cgroup/memory/docker/a", "sys/fs/cgroup/memory/docker"
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    rows = {inner: group, outer: (4 * GIB, 3 * GIB, GIB)}
    write(tmp_path, {"proc/self/cgroup": "4:memory:/docker/a"})
    for folder, (limit, usage, cache) in rows.items():
        write(tmp_path, {f"{folder}/{names[0]}": str(limit), f"{folder}/{names[1]}": str(usage)})
        write(tmp_path, {f"{folder}/memory.stat": f"active_file 0\ntotal_active_file {cache}"})
    limits = read_cgroup(tmp_path)
    assert limits.memory_bytes == min(group[0], 4 * GIB)
    assert (limits.memory_free_bytes, limits.memory_cached_bytes) == left


def siblings(root: Path, pairs: dict[int, str]) -> None:
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    write(root, {folder.format(core): text for core, text in pairs.items()})


def test_two_hyperthreads_are_one_core(tmp_path: Path) -> None:
    siblings(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert count_physical_cores(frozenset({0, 1, 2, 3}), tmp_path) == 2
    assert count_physical_cores(frozenset({0, 2}), tmp_path) == 1
    assert count_physical_cores(frozenset({0, 1}), tmp_path) == 2


def test_slower_cores_of_a_hybrid_cpu_do_not_count(tmp_path: Path) -> None:
    siblings(tmp_path, {0: "0-1", 1: "0-1", 2: "2", 3: "3"})
    write(tmp_path, {"sys/devices/cpu_core/cpus": "0-1"})
    assert count_physical_cores(frozenset({0, 1, 2, 3}), tmp_path) == 1
    assert count_physical_cores(frozenset({2, 3}), tmp_path) == 2  # there are no others to be had


def test_where_the_system_tells_nothing_every_core_counts(tmp_path: Path) -> None:
    assert count_physical_cores(frozenset({4, 5, 6}), tmp_path) == 3


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("a-b,,7-", set()), ("-3", set())],
)
def test_lists_of_cores(text: str, cores: set[int]) -> None:
    assert parse_cpu_list(text) == cores
