"""Abort hooks and ephemeral timeouts, which c10d has for its backends since torch 2.14."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.pool import RankPool
from support.processes import run_ranks
from support.reference import failure

pytestmark = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "register_abort_hook"), reason="needs torch 2.14 or newer"
)


def _fail_and_abort() -> bool:
    """Returns whether a hook was called after it was removed."""
    group = dist.new_group()
    called = threading.Semaphore(0)
    group.register_abort_hook(7, called.release)
    if dist.get_rank() == 0:
        failure(lambda: dist.all_reduce(torch.ones(3), group=group))
    else:
        failure(lambda: dist.barrier(group=group))  # its mismatch ends the others' call
    assert called.acquire(timeout=10)
    while called.acquire(timeout=0.5):
        pass
    group.abort()
    assert called.acquire(timeout=10)
    group.unregister_abort_hook(7)
    group.abort()
    return called.acquire(timeout=0.1)


def test_hooks_are_called_at_failures_and_aborts(fresh_ranks: Callable[..., RankPool]) -> None:
    assert fresh_ranks(2).run(_fail_and_abort) == [False, False]


def test_a_process_ends_after_its_hooks(tmp_path: Path) -> None:
    """torch's flight recorder writes a file in such a hook, with objects that the end of the process destroys."""
    ended, _ = run_ranks("ends_within_an_abort_hook", 2, tmp_path / "store")
    assert ended.code == 0, ended.errors
    assert ended.output.endswith("the hook has ended\n")


def _wait_longer() -> str:
    """The receive has the extended timeout; once it has ended, others have the group's own."""
    group = dist.new_group()
    if dist.get_rank() == 1:
        dist.barrier()
        dist.send(torch.ones(3), 0, group=group)
        dist.barrier()
        return ""
    backend = group._get_backend(torch.device("cpu"))
    backend._set_default_timeout(timedelta(milliseconds=200))
    backend._add_ephemeral_timeout(timedelta(seconds=30))
    work = dist.irecv(torch.ones(3), 1, group=group)
    assert work is not None
    threading.Event().wait(0.5)
    dist.barrier()
    work.wait()
    text = failure(lambda: dist.recv(torch.ones(3), 1, group=group))
    dist.barrier()
    return text


def test_an_extension_ends_with_the_first_operation(fresh_ranks: Callable[..., RankPool]) -> None:
    text, _ = fresh_ranks(2).run(_wait_longer)
    assert "Timed out after 200 ms" in text
