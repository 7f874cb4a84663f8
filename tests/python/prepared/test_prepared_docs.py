"""The example of docs/prepared.md runs as it is, and prints what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from support.processes import output_of

PAGE = Path(__file__).parents[3] / "docs" / "prepared.md"


def test_the_example_runs_and_prints_what_the_page_says(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [printed] = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(program, encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert printed in output_of([*torchrun, str(tmp_path / "example.py")])
