"""Prints JSON lines of one or more files as a table of microseconds: one row per size, one column per work."""

import json
import sys
from pathlib import Path


def main(paths: list[str]) -> None:
    records = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    works = list(dict.fromkeys(record["work"] for record in records))
    cells = {(record["num_bytes"], record["work"]): cell(record) for record in records}
    print("  ".join([f"{'bytes':>8}"] + [f"{work[:20]:>20}" for work in works]))
    for num_bytes in sorted({record["num_bytes"] for record in records}):
        row = [f"{num_bytes:>8}"] + [f"{cells.get((num_bytes, work), '-'):>20}" for work in works]
        print("  ".join(row))


def cell(record: dict) -> str:
    best = f" ({record['best_us']} {record['best_grid']})" if "best_us" in record else ""
    return f"{record['us']}{best}"


if __name__ == "__main__":
    main(sys.argv[1:])
