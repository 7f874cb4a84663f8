"""Checks that torch_axon/_C.pyi matches the engine: runs mypy's stubtest, after torch and the engine are loaded."""

import sys
from pathlib import Path

from mypy import stubtest

from torch_axon import _native

ALLOWS = Path(__file__).with_name("stubtest_allows.txt")

_native.load()
sys.exit(stubtest.test_stubs(stubtest.parse_options(["torch_axon._C", "--concise", "--allowlist", str(ALLOWS)])))
