"""Tests what memory the benchmark takes for free: the host's, or the rest of the tightest cgroup above it."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_axon.bench import memory
from torch_axon.bench.memory import free_bytes, numbers_of

MIB = 1 << 20


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fakes the mounts; the process is in /outer/inner of version 2, and in /job of version 1."""
    own = tmp_path / "own"
    own.write_text("4:memory:/job\n3:cpu,cpuacct:/elsewhere\n0::/outer/inner\n")
    monkeypatch.setattr(memory, "_OWN_CGROUPS", own)
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "mounted")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return tmp_path / "mounted"


def limit_to(folder: Path, limit: str, usage: int, cached: int = 0, version: int = 2) -> None:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names, (limit, str(usage)), strict=True):
        (folder / name).write_text(f"{text}\n")
    (folder / "memory.stat").write_text(f"anon {usage - cached}\ninactive_file {cached}\n")


def test_cgroup_leaves_its_limit_without_what_is_used_and_cannot_be_dropped(
    cgroups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_to(cgroups / "outer" / "inner", str(8 * MIB), usage=5 * MIB, cached=MIB)
    assert free_bytes("cpu") == 4 * MIB
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_bytes("cpu") == MIB


def test_cgroup_is_bound_by_those_that_it_is_in(cgroups: Path) -> None:
    limit_to(cgroups / "outer" / "inner", "max", usage=MIB)
    limit_to(cgroups / "outer", str(7 * MIB), usage=5 * MIB)
    assert free_bytes("cpu") == 2 * MIB


def test_cgroup_of_version_1_counts_too(cgroups: Path) -> None:
    limit_to(cgroups / "memory" / "job", str(4 * MIB), usage=MIB, version=1)
    limit_to(cgroups / "memory", str(2**63 - 4096), usage=MIB, version=1)  # version 1's value for no limit
    assert free_bytes("cpu") == 3 * MIB


def test_without_a_limit_it_is_what_the_host_has(cgroups: Path) -> None:
    limit_to(cgroups / "outer" / "inner", "max", usage=MIB)
    limit_to(cgroups / "elsewhere", str(MIB), usage=0)
    assert free_bytes("cpu") > 64 * MIB
    (cgroups.parent / "own").unlink()
    assert free_bytes("cpu") > 64 * MIB


def test_numbers_are_those_of_lines_with_a_name_and_a_number(tmp_path: Path) -> None:
    path = tmp_path / "status"
    path.write_text("Name:\tpython\nRssAnon:\t    1234 kB\nGroups:\t \nHugePages_Total:       0\ninactive_file 56\n")
    assert numbers_of(path) == {"RssAnon": 1234, "HugePages_Total": 0, "inactive_file": 56}
