"""Code that the pages of docs/ show."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def block_of(page: str, language: str) -> str:
    """Returns the only block of this language in a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    [block] = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(block)
