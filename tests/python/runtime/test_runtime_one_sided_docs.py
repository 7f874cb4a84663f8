"""The example of docs/one_sided.md runs as it is, and prints what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from support.pages import block_of
from support.processes import output_of


def test_the_example_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(block_of("one_sided.md", "python"), encoding="utf-8")
    output = output_of([sys.executable, str(tmp_path / "example.py")])
    for layer in range(4):
        assert f"prefill has written layer {layer}\n" in output
    assert re.search(r"^read layer 0: \[1\], by (cma|messages)$", output, re.MULTILINE), output
    assert "the region 'kv cache' is closed" in output
