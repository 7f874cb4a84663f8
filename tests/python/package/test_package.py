"""Tests what importing the package does and does not do, and the tool that prints its settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_axon
from torch_axon import _build, _native, config

_ROOT = Path(__file__).parents[3]


def _python(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_import_registers_but_loads_neither_extension_nor_ucx() -> None:
    program = (
        "import sys, torch_axon, torch.distributed as dist; "
        "print(dist.Backend.AXON, 'torch_axon._C' in sys.modules, 'libucx' in sys.modules)"
    )
    assert _python(program).split() == ["axon", "False", "False"]


def test_the_entry_point_may_be_called_at_any_time() -> None:
    torch_axon._autoload()
    assert dist.Backend._plugins["AXON"].extended_api


def test_another_torch_is_refused_saying_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build, "TORCH_VERSION", "1.13.1")
    reason = _native.mismatch()
    assert reason is not None
    for part in ("torch 1.13", f"torch {torch.__version__}", "pip install 'torch==1.13.*'"):
        assert part in reason
    _native.load.cache_clear()
    with pytest.raises(ImportError, match="pip install"):
        _native.load()


def test_every_patch_release_of_the_same_minor_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_build, "TORCH_VERSION", ".".join([*torch.__version__.split(".")[:2], "99"]))
    assert _native.mismatch() is None


def test_make_default_names_the_devices_it_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist.Backend, "default_device_backend_map", {"cpu": "gloo"})
    torch_axon.make_default()
    assert dist.Backend.default_device_backend_map == {"cpu": "axon"}
    with pytest.raises(ValueError, match="'tpu'; allowed: cpu, cuda"):
        torch_axon.make_default(["tpu"])


def test_import_takes_nothing_along_that_torch_has_not_loaded() -> None:
    """Prints how many milliseconds this takes, without a limit; the goal is 200."""
    program = (
        "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; import sys, time, torch, torch.distributed; "
        "before = set(sys.modules); started = time.perf_counter(); import torch_axon; "
        "print((time.perf_counter() - started) * 1e3, *sorted(set(sys.modules) - before))"
    )
    milliseconds, *modules = _python(program).split()
    print(f"importing torch_axon takes {milliseconds} ms over torch")
    assert {name.partition(".")[0] for name in modules} == {"torch_axon"}, modules


def _default_group(backend: str, calls: str = "") -> str:
    """Returns the backend of the default group, in a process that has made axon the default."""
    program = (
        "import torch, torch.distributed as dist, torch_axon; torch_axon.make_default(); "
        f"dist.init_process_group({backend}store=dist.HashStore(), rank=0, world_size=1); "
        "group = dist.distributed_c10d._get_default_group(); "
        f"name = group._get_backend(torch.device('cpu')).name(); {calls}print(name); dist.destroy_process_group()"
    )
    return _python(program).strip()


def test_make_default_is_what_groups_without_a_name_take() -> None:
    calls = (
        "data = torch.ones(3); dist.all_reduce(data); dist.barrier(); objects = [None]; "
        "dist.all_gather_object(objects, 'object'); other = dist.new_group(); dist.all_reduce(data, group=other); "
        "assert objects == ['object']; "
    )
    assert _default_group("", calls) == "axon"
    assert _default_group("'gloo', ") == "gloo"


def test_the_documented_settings_are_the_engines() -> None:
    documented = (_ROOT / "docs" / "environment.md").read_text()
    assert config.as_markdown(config.settings()) + "\n" == documented


def test_settings_show_where_values_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AXON_LOG", "debug")
    row = next(row for row in config.settings() if row["name"] == "AXON_LOG")
    assert (row["value"], row["source"]) == ("debug", "environment")
    assert "AXON_LOG = 'debug'  (environment)" in config.as_text([row])
