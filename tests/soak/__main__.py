"""Runs hours of random operations and faults: python tests/soak --minutes 60 --json report.jsonl

Add --one-sided for transfers between runtimes in place of collectives, and --hosts for two emulated hosts.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# The folders that the tests share; and the package, where it is not installed.
sys.path += [str(_ROOT / "tests"), str(_ROOT / "tools"), str(_ROOT)]


def main() -> None:
    from soak import Settings, Soak
    from soak_hosts import HostsSoak
    from soak_one_sided import OneSidedSoak
    from two_hosts import clean_up_when_told_to_end

    from torch_axon.bench.record import describe_machine

    arguments = _parse()
    print(f"--seed {arguments.seed}", flush=True)
    clean_up_when_told_to_end()
    soak: Soak | HostsSoak | OneSidedSoak
    if arguments.one_sided:
        soak = OneSidedSoak(arguments.seed, on_hosts=arguments.hosts)
    elif arguments.hosts:
        soak = HostsSoak(arguments.seed)
    else:
        soak = Soak(Settings(arguments.seed, arguments.slots, arguments.device))
    report = soak.run(arguments.minutes, arguments.first_round)
    device = "cpu" if arguments.device == "cpu" else "cuda"
    command = f"python tests/soak {shlex.join(sys.argv[1:])}"
    report["machine"] = asdict(replace(describe_machine(device, arguments.commit), command=command))
    print(json.dumps(report, indent=2))
    if arguments.json:
        with open(arguments.json, "a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")
    if report["excess"]:
        sys.exit("what processes hold has grown")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="another one each time, by default")
    parser.add_argument("--slots", type=int, default=4, help="processes, of which each round takes two or more")
    parser.add_argument("--device", choices=("cpu", "cuda", "staged"), default="cpu")
    parser.add_argument("--hosts", action="store_true", help="on two emulated hosts, CPU tensors: links and rails fail")
    parser.add_argument("--one-sided", action="store_true", help="transfers of CPU memory between four runtimes")
    parser.add_argument("--first-round", type=int, default=0, help="skips those before it: to repeat one that failed")
    parser.add_argument("--json", help="where the report's line is appended")
    parser.add_argument("--commit", help="the commit that was built, for a tree without git")
    return parser.parse_args()


if __name__ == "__main__":
    main()
