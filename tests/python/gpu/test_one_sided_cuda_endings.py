"""How one-sided transfers of CUDA memory end: captures, closed regions, timeouts, misuse, and killed processes."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from support.one_sided_cuda import (
    BOTH,
    DEADLINE_S,
    NUM_BYTES,
    Here,
    Pair,
    close_all,
    close_region,
    end,
    equal,
    expose,
    gpu_works,
    owner_has,
    pattern,
    pool_on,
    take,
)
from torch_axon.runtime import AccessDenied, PeerLostError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def _capture(handle: bytes) -> None:
    remote = Here.server.open(handle)
    memory = torch.zeros(NUM_BYTES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        memory.add_(1)
        with pytest.raises(RuntimeError, match="captured into a CUDA graph"):
            Here.server.read(remote, memory)
        with pytest.raises(RuntimeError, match="captured into a CUDA graph"):
            Here.runtime.expose(memory)
        other = torch.zeros(100, dtype=torch.uint8, device="cpu")
        Here.server.read(remote[:100], other).result(DEADLINE_S)  # no stream takes part
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(memory, torch.ones_like(memory))
    assert equal(other, 1)
    Here.server.read(remote, memory).result(DEADLINE_S)
    assert equal(memory, 1)


def test_captures_are_refused_and_stay_valid(pair: Pair) -> None:
    pair.initiator(_capture, pair.owner(expose, "cuda"))


def _use_until_denied(handle: bytes, device: str) -> str:
    remote = Here.server.open(handle)
    into = torch.zeros(NUM_BYTES, dtype=torch.uint8, device=device)
    Here.server.notify(b"reading").result(DEADLINE_S)
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        transfers = [Here.server.read(remote, into) for _ in range(4)]
        failures = [transfer.exception(DEADLINE_S) for transfer in transfers]
        denied = [failure for failure in failures if failure is not None]
        if denied:
            assert all(isinstance(failure, AccessDenied) for failure in denied), denied
            while not all(transfer.released for transfer in transfers):
                time.sleep(0.001)
            return str(denied[-1])
        assert equal(into, 1)
    raise AssertionError("never denied")


def _close_at_notification(device: str) -> tuple[bool, list[str]]:
    take(b"reading")
    time.sleep(0.05)
    closed = close_region(device, DEADLINE_S)
    Here.memory[device].fill_(9)  # it is not read any more
    return closed


@pytest.mark.parametrize("here", BOTH)
def test_a_closed_region_denies_later_requests(pair: Pair, here: str) -> None:
    handle = pair.owner(expose, "cuda")
    closed, denial = pair.both((_close_at_notification, "cuda"), (_use_until_denied, handle, here))
    assert closed == (True, [])
    assert "'owner'" in denial
    assert "region 'cuda memory'" in denial


def _open_again(handle: bytes) -> None:
    with pytest.raises(AccessDenied, match=r"'owner'.*closed"):
        Here.server.open(handle)


def test_memory_at_a_reused_address_is_another_region(pair: Pair) -> None:
    for seed in (3, 4, 5):
        handle = pair.owner(expose, "cuda")
        pair.initiator(_read_all, handle, 1)
        pair.owner(_change, seed)
        pair.initiator(_read_all, handle, seed)
        pair.owner(close_all)
        pair.owner(_give_back)
        pair.initiator(_open_again, handle)


def _read_all(handle: bytes, seed: int) -> None:
    into = torch.zeros(NUM_BYTES, dtype=torch.uint8, device="cuda")
    Here.server.read(Here.server.open(handle), into).result(DEADLINE_S)
    assert equal(into, seed)


def _change(seed: int) -> None:
    Here.memory["cuda"].copy_(pattern(NUM_BYTES, seed, "cuda"))
    torch.cuda.synchronize()


def _give_back() -> None:
    torch.cuda.empty_cache()


def _post_after_long_work(handle: bytes, timeout: float) -> None:
    """Posts a write that begins some seconds later."""
    remote = Here.server.open(handle)
    source = pattern(NUM_BYTES, 2, "cuda")
    torch.cuda.synchronize()
    for _ in range(20):
        torch.cuda._sleep(200_000_000)  # some 0.1 s
    Here.posted = [Here.server.write(remote, source, notify=b"late", timeout=timeout)]


def _outcome() -> tuple[str, bool, bool]:
    [transfer] = Here.posted
    failure = transfer.exception(DEADLINE_S)
    was_released = transfer.released
    until = time.monotonic() + DEADLINE_S
    while not transfer.released and time.monotonic() < until:
        time.sleep(0.001)
    return type(failure).__name__, was_released, transfer.released


def test_a_region_is_held_until_copies_under_way_have_ended(pair: Pair) -> None:
    if pair.path == "messages":
        pytest.skip("a transfer by messages begins after the stream, and is denied then")
    handle = pair.owner(expose, "cuda")
    pair.initiator(_post_after_long_work, handle, DEADLINE_S)
    assert pair.owner(_close_quickly) == (False, ["initiator"])
    assert pair.initiator(_outcome) == ("NoneType", True, True)
    assert pair.owner(close_region, "cuda", DEADLINE_S) == (True, [])
    assert pair.owner(owner_has, "cuda", 2)
    pair.owner(take, b"late")


def _close_quickly() -> tuple[bool, list[str]]:
    with pytest.warns(RuntimeWarning, match="held by: initiator"):
        return close_region("cuda", 0.05)


def test_a_late_transfer_times_out_and_keeps_its_memory(pair: Pair) -> None:
    handle = pair.owner(expose, "cuda")
    pair.initiator(_post_after_long_work, handle, 0.05)
    kind, was_released, is_released = pair.initiator(_outcome)
    assert kind == "TimeoutError"
    assert is_released
    assert pair.path == "messages" or not was_released  # a transfer by messages has not begun
    assert pair.owner(_num_notified) == 0


def _num_notified() -> int:
    return len(Here.runtime.notifications(timeout=0.2))


def _misuse(handles: dict[str, bytes]) -> None:
    server = Here.server
    memory = torch.zeros(NUM_BYTES, dtype=torch.uint8, device="cuda")
    readable, writable = server.open(handles["r"]), server.open(handles["w"])
    with pytest.raises(AccessDenied, match="region 'cuda memory' allows 'r' only"):
        server.write(readable, memory).result(DEADLINE_S)
    with pytest.raises(AccessDenied, match="region 'cuda memory' allows 'w' only"):
        server.read(writable, memory).result(DEADLINE_S)
    with pytest.raises(ValueError, match="into has 3 bytes, and the remote memory 4"):
        server.read(readable[:4], memory[:3])
    with pytest.raises(ValueError, match="contiguous"):
        server.read(readable[:4], memory[:8:2])
    with pytest.raises(ValueError, match=r"memory is on (the CPU|cuda:\d+) and on"):
        Here.runtime.expose([torch.zeros(3, device=device) for device in BOTH])


def _handles() -> dict[str, bytes]:
    region = Here.regions["cuda"]
    return {"r": region.handle(access="r"), "w": region.handle(access="w")}


def test_misuse_is_refused_with_names(pair: Pair) -> None:
    pair.owner(expose, "cuda")
    pair.initiator(_misuse, pair.owner(_handles))
    assert pair.owner(owner_has, "cuda", 1)


# ---- Ends of processes


def _write_on(handle: bytes) -> str:
    """Writes until it fails."""
    remote = Here.server.open(handle)
    sources = [pattern(NUM_BYTES, 2, device) for device in BOTH]
    Here.server.notify(b"reading").result(DEADLINE_S)
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        failures = [transfer.exception(DEADLINE_S) for transfer in [Here.server.write(remote, s) for s in sources]]
        for failure in failures:
            if failure is not None:
                assert isinstance(failure, PeerLostError), failure
                return str(failure)
    raise AssertionError("the writes never failed")


def _die_at_notification() -> None:
    take(b"reading")
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("device", ["cuda", "staged"])
def test_a_killed_owner_ends_transfers(device: str) -> None:
    with pool_on(device, 0) as owner, pool_on(device, 1) as initiator:
        pair = Pair(owner, initiator)
        handle = pair.owner(expose, "cuda")
        owner.start(_die_at_notification)
        initiator.start(_write_on, handle)
        [text] = initiator.finish(2 * DEADLINE_S)
        assert "'owner'" in text
        owner.finish(DEADLINE_S, dying=[0])
        assert pair.initiator(gpu_works)
        pair.initiator(end)


def _write_and_die(handle: bytes) -> None:
    remote = Here.server.open(handle)
    sources = [pattern(NUM_BYTES, 2, device) for device in BOTH]
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        for transfer in [Here.server.write(remote, source) for source in sources]:
            transfer.result(DEADLINE_S)
    for _ in range(20):
        Here.server.write(remote, sources[0])
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("device", ["cuda", "staged"])
def test_a_killed_initiator_releases_the_region(device: str) -> None:
    with pool_on(device, 0) as owner, pool_on(device, 1) as initiator:
        pair = Pair(owner, initiator)
        handle = pair.owner(expose, "cuda")
        initiator.run(_write_and_die, handle, timeout_s=2 * DEADLINE_S, dying=[0])
        assert pair.owner(close_region, "cuda", DEADLINE_S) == (True, [])
        assert pair.owner(gpu_works)
        pair.owner(end)
