"""Tests what the benchmark's clocks count, and what they leave out."""

from __future__ import annotations

import pytest
import torch

from torch_axon.bench import clock


def test_the_host_waits_for_the_gpu_between_samples_and_not_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    ticks = iter(range(0, 1000, 7))

    def tick() -> int:
        events.append("tick")
        return next(ticks)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("synchronize"))
    monkeypatch.setattr(clock, "perf_counter_ns", tick)
    samples = clock.EnqueueClock().time(lambda: events.append("run"), 2)
    assert samples == [7, 7]
    assert events == ["run", *2 * ["synchronize", "tick", "run", "tick"], "synchronize"]


def test_a_batch_of_enqueued_calls_stays_far_below_the_launches_that_a_gpu_takes() -> None:
    most_launches_a_call = 8
    assert clock.EnqueueClock.smallest_batch * most_launches_a_call < 1000 / 2
