"""The example of docs/nixl.md runs as it is, and prints what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from support.processes import output_of

PAGE = Path(__file__).parents[3] / "docs" / "nixl.md"


def test_the_example_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    [printed] = re.findall(r"^It prints `(.*)`\.$", page, re.MULTILINE)
    (tmp_path / "example.py").write_text(program, encoding="utf-8")
    assert printed in output_of([sys.executable, str(tmp_path / "example.py")])
