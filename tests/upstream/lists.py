"""The lists of upstream's tests: names, one a line; after a colon the reason where there is one."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def read(list_name: str) -> dict[str, str]:
    """Reasons by name."""
    lines = (HERE / f"{list_name}.txt").read_text().splitlines()
    rows = [line.partition(":") for line in lines if line and not line.startswith("#")]
    return {name.strip(): reason.strip() for name, _, reason in rows}


def must_pass() -> list[str]:
    return [*read("must_pass"), *read("gated")]


def cannot_pass() -> dict[str, str]:
    return read("cannot_pass")
