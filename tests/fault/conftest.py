"""Options of these tests alone; the rest is in the folder above."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-json", type=Path, help="where tests/fault append a line of what they have seen")
