"""Compares results with their expectations: each test does what its list says, and each is in a list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lists import Expected

Row = Mapping[str, object]


def complaints(rows: Sequence[Row], expected: Expected) -> Iterator[str]:
    """Returns one line per difference, or nothing where all is as listed. Tests that have not run are ignored."""
    if all(row["outcome"] == "not run" for row in rows):
        yield "no test has run"
    for row in rows:
        if row["outcome"] != "not run" and (wrong := _complaint(row, expected)):
            yield f"{row['name']}: {wrong}"
    listed = {**dict.fromkeys(expected.to_pass), **expected.not_to_pass, **expected.not_to_run}
    for name in sorted(listed.keys() - {row["name"] for row in rows}):
        yield f"{name}: is listed, and torch has no such test"


def _complaint(row: Row, expected: Expected) -> str | None:
    name, outcome, why = (str(row[key]) for key in ("name", "outcome", "why"))
    if name in expected.to_pass:
        return None if outcome == "passed" else f"has to pass, and does not: {outcome}, {why}"
    if name in expected.not_to_pass:
        shortcoming = expected.not_to_pass[name]
        if outcome == "failed" and shortcoming.saying in why:
            return None
        how = {"passed": "passes by now", "skipped": f"is skipped ({why})"}.get(outcome, f"fails otherwise ({why})")
        return f"{how}, though listed as: {shortcoming.reason}"
    if name not in expected.not_to_run:
        return {
            "passed": "passes, and is in no list",
            "skipped": f"is skipped ({why}), and no list says under which line",
        }.get(outcome, "fails, and no list says why")
    gates = expected.not_to_run[name]
    if outcome != "skipped":
        return f"{outcome}, though listed under {' and '.join(gate.line for gate in gates)}"
    if not any(gate.says(why) for gate in gates):
        return f"is skipped ({why}), though listed under {' and '.join(gate.line for gate in gates)}"
    return None
