"""Finalizers call, send and look into mailboxes while the garbage collector runs within a call or a lock."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from support.processes import environment

HEAD = """
import faulthandler; faulthandler.dump_traceback_later(60, exit=True)
import gc, signal, threading
import torch
from torch_axon.runtime import Pool, Runtime

server, client = Runtime("server"), Runtime("client")
server.register("echo")(lambda value: value)
box = server.mailbox("box", capacity=1000)
own = client.mailbox("own")
peer = client.connect(server.address)
sent = []
num_finalized = 0

class Finalized:
    # Holds itself, so that the garbage collector finds it wherever that runs.
    def __init__(self): self.itself = self
    def __del__(self):
        global num_finalized
        num_finalized += 1
        finalize()

def churn(work):
    # Collects with nearly every object that is made.
    gc.set_threshold(1, 1, 1)
    try:
        for number in range(300):
            Finalized()
            work(number)
    finally:
        gc.set_threshold(700, 10, 10)
    assert num_finalized > 100, num_finalized
"""
END = """
Finalized.__del__ = lambda self: None
client.close(drain=False)
server.close(drain=False)
print("over")
"""
CASES = {
    "sends to the tag that is sent to": (
        """
        def finalize(): sent.append(peer.send("box", -1))
        futures = []
        churn(lambda number: futures.append(peer.send("box", number)))
        gc.collect()
        for future in futures + sent: future.result(30)
        came = [box.get(30) for _ in range(len(futures) + len(sent))]
        assert [value for value in came if value >= 0] == list(range(300)), came
        """
    ),
    "looks into the mailbox that is taken from": (
        """
        def finalize(): assert box.probe() >= 0
        def work(number):
            peer.send("box", number).result(30)
            assert box.get(30) == number
        churn(work)
        """
    ),
    "calls and waits": (
        """
        def finalize(): assert peer.invoke("echo", [1, 2]).result(30) == [1, 2]
        churn(lambda number: peer.invoke("echo", [number]).result(30))
        """
    ),
    "attaches callbacks": (
        """
        def finalize(): sent.append(peer.invoke("echo", 1)); sent[-1].add_done_callback(lambda future: future.result())
        churn(lambda number: peer.invoke("echo", number).add_done_callback(lambda future: future.result()))
        for future in sent: assert future.result(30) == 1
        """
    ),
    "closes a runtime": (
        """
        def finalize(): num_finalized % 30 or Runtime("passing").close(drain=False)
        churn(lambda number: number % 30 or (peer.invoke("echo", [number]).result(30), client.mailbox(f"tag {number}")))
        """
    ),
    "closes a peer while another one is met": (
        """
        clients = client, Runtime("another")
        def finalize(): sent.pop().close() if sent else None
        def work(number):
            met = clients[number % 2].connect(server.address)
            assert met.invoke("echo", [number]).result(30) == [number]
            sent[:] = [met]  # of the other runtime than that which connects next
        churn(work)
        """
    ),
    "allocates from the pool that is allocated from": (
        """
        from torch_axon.runtime import Incoming
        pool = Pool(1 << 30)
        coming = [Incoming(torch.float32, torch.Size([2000]), False)]
        kept = []
        def finalize(): kept.append(pool(coming)[0])
        churn(lambda number: kept.append(pool(coming)[0]))
        addresses = {tensor.data_ptr() for tensor in kept}
        assert len(addresses) == len(kept)
        """
    ),
    "runs as a signal handler": (
        """
        def finalize(): pass
        def handle(*_):
            sent.append(peer.send("box", -1))
            box.probe()
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        futures = []
        churn(lambda number: (futures.append(peer.send("box", number)), box.probe()))
        signal.setitimer(signal.ITIMER_REAL, 0)
        for future in futures + sent: future.result(30)
        """
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_finalizers_use_what_they_have_interrupted(case: str) -> None:
    program = HEAD + textwrap.dedent(CASES[case]) + END
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment(),
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "over\n", ended.stderr
    assert not ended.stderr
