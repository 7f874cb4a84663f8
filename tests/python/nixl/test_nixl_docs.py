"""The example of docs/nixl.md runs as it is, and prints what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from support.pages import DOCS, block_of
from support.processes import output_of


def test_the_example_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    [printed] = re.findall(r"^It prints `(.*)`\.$", (DOCS / "nixl.md").read_text(encoding="utf-8"), re.MULTILINE)
    (tmp_path / "example.py").write_text(block_of("nixl.md", "python"), encoding="utf-8")
    assert printed in output_of([sys.executable, str(tmp_path / "example.py")])
