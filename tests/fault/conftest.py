"""Options of the fault tests; the folder above has the others."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--round-fault", action="append", help="by what --fault-rounds fail; not told: by all in turn")
    parser.addoption("--faults-json", type=Path, help="where tests/fault append a line of what they have seen")
    parser.addoption("--faults-commit", help="the commit that was built, for a tree without git")
