"""A hook of mkdocs: adds the pages that mkdocs.yml does not name after those that it names, and decisions last."""

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    placed = str(config["nav"])
    pages = sorted(path.relative_to(config["docs_dir"]).as_posix() for path in Path(config["docs_dir"]).rglob("*.md"))
    left = [page for page in pages if repr(page) not in placed]
    config["nav"] += [page for page in left if not page.startswith("adr/")]
    decisions = [page for page in left if page.startswith("adr/")]
    config["nav"].append({"Decisions": sorted(decisions, key=lambda page: (page != "adr/index.md", page))})
    return config
