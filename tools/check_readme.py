"""Checks the README: at most 600 words, one chart, the commands, and only figures that docs/performance.md has, too.

python tools/check_readme.py [FOLDER]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_WORDS = 600  # as `wc -w` counts them
COMMANDS = ("make wheel && pip install dist/torch_axon-*.whl", "make demo", "make test")
FIGURES = "## Five numbers"

_FIGURE = re.compile(r"(?<![\w.,])(\d[\d.,]*) (?:×|µs|ms)")


def problems(readme: str, performance: str) -> Iterator[str]:
    if (num_words := len(readme.split())) > MAX_WORDS:
        yield f"README.md: {num_words} words, at most {MAX_WORDS} allowed; move details into docs/"
    if (num_charts := readme.count("![")) != 1:
        yield f"README.md: {num_charts} charts instead of one"
    code = [line.partition("#")[0].strip() for line in readme.splitlines() if line.startswith("    ")]
    yield from (f"README.md: the command {command!r} is missing" for command in COMMANDS if command not in code)
    _, _, rest = readme.partition(FIGURES)
    figures = _FIGURE.findall(rest.partition("\n## ")[0])
    if not figures:
        yield f"README.md: no figures in a section {FIGURES!r}"
    shown = set(re.findall(r"(?<![\w.,])\d[\d.,]*\d|\d", performance))
    yield from (f"README.md: the figure {each} is not in docs/performance.md" for each in figures if each not in shown)


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    texts = [(root / name).read_text(encoding="utf-8") for name in ("README.md", "docs/performance.md")]
    found = list(problems(*texts))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
