"""Tests the documents: the errors that they quote exist, and their links have targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import site_nav

_ROOT = Path(__file__).parents[2]
_DOCS = _ROOT / "docs"
_PAGES = sorted(page.relative_to(_DOCS).as_posix() for page in _DOCS.rglob("*.md"))


def _source_texts() -> str:
    """Returns all sources, with adjacent literals joined as the compiler joins them."""
    paths = [path for folder in ("csrc", "torch_axon") for path in (_ROOT / folder).rglob("*")]
    text = "\n".join(path.read_text() for path in paths if path.suffix in (".cpp", ".hpp", ".py"))
    return re.sub(r'"\s*\n\s*f?"', "", text)


def _quoted_errors() -> list[str]:
    """Returns the quoted code in the first column of the troubleshooting tables."""
    rows = re.findall(r"^\| (`.*?) \| ", (_DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    return [quoted for row in rows for quoted in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize("quoted", _quoted_errors())
def test_every_error_of_the_troubleshooting_page_is_one_of_ours(quoted: str) -> None:
    sources = _source_texts()
    pieces = [piece.strip(" '") for piece in quoted.split("…")]
    missing = [piece for piece in pieces if piece and piece not in sources]
    assert not missing


@pytest.mark.parametrize("page", _PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = (_DOCS / page).read_text()
    for target in re.findall(r"\]\(([^)#:]+\.md)[^)]*\)", text):
        assert (_DOCS / page).parent.joinpath(target).is_file(), target


def test_every_page_gets_a_place_in_the_site() -> None:
    config = {"docs_dir": str(_DOCS), "nav": [{"Start": "index.md"}]}
    placed = str(site_nav.on_config(config)["nav"])
    for page in _PAGES:
        assert placed.count(repr(page)) == 1, page
