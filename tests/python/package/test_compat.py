"""The compatibility patches of torch.distributed, and the setting that turns them off."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from torch_axon import _compat

_PROGRAM = """
import torch.distributed as dist
import torch_axon
c10d = dist.distributed_c10d
functions = [c10d._set_pg_timeout, c10d._new_process_group_helper]
print([function.__code__.co_filename.endswith("_compat.py") for function in functions])
"""


@pytest.mark.parametrize(
    ("version", "is_before"),
    [
        ("2.9.1", True),
        ("2.13.1+cu130", True),
        ("2.14.0.dev20260101+cpu", False),
        ("2.14.0a0+git1234567", False),
        ("2.14.0", False),
        ("2.15.0+cu132", False),
        ("10.0.0", False),
    ],
)
def test_versions_are_compared_as_versions(version: str, is_before: bool) -> None:
    assert _compat.is_before(version, "2.14") == is_before


@pytest.mark.parametrize(("value", "is_patched"), [(None, True), ("1", True), ("0", False)])
def test_a_setting_turns_the_patches_off(value: str | None, is_patched: bool) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "AXON_COMPAT"}
    if value is not None:
        environment["AXON_COMPAT"] = value
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip() == str([is_patched] * 2)
