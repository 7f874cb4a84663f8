"""The example of docs/one_sided.md runs as it is, and prints what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from support.processes import output_of

PAGE = Path(__file__).parents[3] / "docs" / "one_sided.md"


def test_the_example_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(program, encoding="utf-8")
    output = output_of([sys.executable, str(tmp_path / "example.py")])
    for layer in range(4):
        assert f"prefill has written layer {layer}\n" in output
    assert re.search(r"^read layer 0: \[1\], by (cma|messages)$", output, re.MULTILINE), output
    assert "the region 'kv cache' is closed" in output
