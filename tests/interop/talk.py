"""Tests generators and mailboxes between Python and C++, both ways: python talk.py BINARY starts the C++ process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from torch_axon.runtime import Runtime

NUM_VALUES = 20
DEADLINE_S = 30.0

Value = list[object]  # [index, tensor]


def value(index: int) -> Value:
    """Returns the value that the other process makes, too."""
    return [index, torch.full((5000 if index % 3 == 0 else 3,), float(index))]


def check(values: list[Value]) -> None:
    for index, (number, tensor) in enumerate(values):
        assert number == index
        assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(value(index)[1]))
    assert len(values) == NUM_VALUES


def main() -> None:
    with Runtime("python", timeout=DEADLINE_S) as runtime, tempfile.TemporaryDirectory() as folder:
        mailbox = runtime.mailbox("to_python", 3)

        @runtime.register
        def count(end: int, *, step: int) -> Iterator[Value]:
            yield from map(value, range(0, end, step))
            raise ValueError("it counts no further")

        @runtime.register
        async def count_on_loop(end: int, *, step: int) -> AsyncIterator[Value]:
            for index in range(0, end, step):
                yield value(index)
            raise ValueError("it counts no further")

        @runtime.register
        def fail() -> None:
            raise ValueError("as it is to")

        @runtime.register(executor=ThreadPoolExecutor(1))
        def talk(address: bytes) -> None:
            cpp = runtime.connect(address)
            sent = [cpp.send("to_cpp", value(index)) for index in range(NUM_VALUES)]
            check([mailbox.get(DEADLINE_S) for _ in range(NUM_VALUES)])
            for each in sent:
                each.result(DEADLINE_S)
            values: list[Value] = []
            try:
                for one in cpp.iterate("count", end=NUM_VALUES, ahead=5):
                    values.append(one)
            except ValueError as error:
                assert "it counts no further" in str(error)  # noqa: PT017
            else:
                raise AssertionError("it counts further")
            check(values)
            with cpp.iterate("count", end=1000, ahead=3) as stopped:
                next(stopped)

        path = Path(folder, "address")
        path.write_bytes(runtime.address)
        subprocess.run([sys.argv[1], str(path)], check=True, timeout=60)
    print("fine")


if __name__ == "__main__":
    main()
