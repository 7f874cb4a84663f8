"""Runs a program whose `import nixl` gives the module of torch_axon.

python -m torch_axon.nixl server.py --port 8000      # a Python file
python -m torch_axon.nixl -m package.module …        # a Python module
python -m torch_axon.nixl vllm serve …               # a program of PATH, which runs Python
"""

from __future__ import annotations

import os
import sys

from torch_axon.nixl import path


def main() -> int:
    program = sys.argv[1:]
    if not program:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    others = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{path()}{os.pathsep}{others}" if others else str(path())
    is_python = program[0].startswith("-") or program[0].endswith(".py")
    command = [sys.executable, *program] if is_python else program
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"torch_axon.nixl: {command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())
