"""Each listed test of upstream's passes, and each that cannot pass fails. One process runs all of them (run.py)."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import lists
import pytest

# run.py ends a test after 60 s itself.
_ANSWER_TIMEOUT_S = 90


class Runner:
    """Runs run.py, started at first use and again after a test has ended it."""

    def __init__(self, **environment: str) -> None:
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None

    def run(self, name: str) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        print(name, file=process.stdin, flush=True)
        if not select.select([process.stdout], [], [], _ANSWER_TIMEOUT_S)[0]:
            self.close()
            return {"name": name, "outcome": "hung", "detail": f"no answer after {_ANSWER_TIMEOUT_S} s"}
        answer = process.stdout.readline()
        if not answer:
            return {"name": name, "outcome": "failed", "detail": f"run.py ended with {process.wait()}"}
        return json.loads(answer)  # type: ignore[no-any-return]

    def _start(self) -> None:
        command = [sys.executable, str(lists.HERE / "run.py"), "-"]
        paths = os.pathsep.join(path for path in sys.path if path)  # the package under test, installed or not
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths} | self._environment,
        )

    def close(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


@pytest.mark.parametrize("name", lists.must_pass())
def test_passes(name: str, runner: Runner) -> None:
    row = runner.run(name)
    assert row["outcome"] == "passed", row["detail"]


@pytest.mark.parametrize(("name", "why"), lists.cannot_pass().items())
def test_cannot_pass(name: str, why: lists.Shortcoming, runner: Runner) -> None:
    row = runner.run(name)
    assert row["outcome"] != "passed", f"passes, though listed as: {why.reason}. Move it to gated.txt."
    assert why.saying in row["detail"]


@pytest.mark.parametrize("backend", ["gloo", "axon"])
def test_torch_averages_nothing_once_static_ddp_is_reloaded(backend: str) -> None:
    """Shows why cannot_pass_on_gpus.txt lists test_DistributedDataParallel."""
    runner = Runner(AXON_TEST_BACKEND=backend)
    try:
        trains, reloaded, reset = map(
            runner.run,
            ("static_ddp_trains", "reloaded_static_ddp_trains", "reloaded_static_ddp_trains_once_reset"),
        )
    finally:
        runner.close()
    assert trains["outcome"] == "passed", trains["detail"]
    assert "Tensor-likes are not close" in reloaded["detail"]
    assert reset["outcome"] == "passed", reset["detail"]
