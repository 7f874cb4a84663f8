"""The example of docs/prepared.md runs as it is, and prints what the page says."""

from __future__ import annotations

import sys
from pathlib import Path

from support.pages import block_of
from support.processes import output_of


def test_the_example_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(block_of("prepared.md", "python"), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert block_of("prepared.md", "text") in output_of([*torchrun, str(tmp_path / "example.py")])
