"""A checkpoint engine "axon" for verl: rollout workers read the trainer's weights one-sidedly.

Name this module in verl's `checkpoint_engine.custom_backend_module`, and set `checkpoint_engine.backend=axon`. Further
arguments of the engine go into `checkpoint_engine.engine_kwargs.axon`.

Rank 0 of the trainer is the master. It exposes weights bucket by bucket, where they are, and sends the handle of each
bucket to the mailboxes of the rollout workers. These read the bucket, all at the same time, and each read ends with a
notification to the master. While one bucket is read, the master gathers the next one, so two exist at a time.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator
from typing import Any

import torch
from torch import Tensor
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from torch_axon.runtime import Mailbox, Peer, Region, Runtime, current_call

LONGEST_WAIT_S = 300.0
MAILBOX = "buckets"
MOST_WEIGHTS = 2048  # that one region can have


@CheckpointEngineRegistry.register("axon")
class AxonCheckpointEngine(CheckpointEngine):
    """Transfers weights from rank 0 of the trainer to all rollout workers.

    Args:
        bucket_size: the bytes of a bucket; a larger weight is a bucket of its own
        is_master: whether this is rank 0 of the trainer
        device: where rollout workers receive weights
        rollout_dtype: the type to which weights are converted; None: their own
        host: a name or address of the master's host at which rollout workers reach it; None: the one that Ray uses
    """

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        device: str = "cuda",
        rollout_dtype: torch.dtype | None = torch.bfloat16,
        host: str | None = None,
    ) -> None:
        self.bucket_size = bucket_size
        self.is_master = is_master
        self.device = device
        self.rollout_dtype = rollout_dtype
        self._host = host
        self._runtime: Runtime | None = None
        self._joined: queue.Queue[Peer]
        self._rollouts: list[Peer] = []
        self._reads: Counter[int] = Counter()  # the number of rollout workers that have read a bucket
        self._master: Peer
        self._mailbox: Mailbox

    def prepare(self) -> dict[str, Any]:
        if not self.is_master:
            return {}
        self._runtime = Runtime("master", timeout=LONGEST_WAIT_S, secret=secrets.token_bytes(32))
        joined: queue.Queue[Peer] = (
            queue.Queue()
        )  # of this runtime alone: a round that failed may leave peers in its own
        self._joined = joined

        @self._runtime.register
        def join() -> None:
            call = current_call()
            assert call is not None
            joined.put(call.peer)

        self._runtime.listen(self._host or _host_of_ray())
        return {"address": self._runtime.address}

    @classmethod
    def build_topology(
        cls, trainer_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        if "address" not in metadata[0]:
            raise ValueError("build_topology: rank 0 of the trainer has no address; allowed: is_master=True there")
        return {
            "rank": [0] + [-1] * (trainer_world_size - 1),
            "num_rollouts": [rollout_world_size] * trainer_world_size,
            "master": [b""] * trainer_world_size,
        }, {
            "rank": list(range(1, rollout_world_size + 1)),
            "num_rollouts": [rollout_world_size] * rollout_world_size,
            "master": [metadata[0]["address"]] * rollout_world_size,
        }

    def init_process_group(self, rank: int, num_rollouts: int, master: bytes) -> None:
        """Connects the rollout workers, of rank 1 and more, to the master, of rank 0. Others have rank -1."""
        if rank == 0:
            try:
                while len(self._rollouts) < num_rollouts:
                    self._rollouts.append(self._joined.get(timeout=LONGEST_WAIT_S))
            except queue.Empty:
                raise TimeoutError(f"{len(self._rollouts)} of {num_rollouts} rollout workers have connected") from None
        elif rank > 0:
            self._runtime = Runtime(f"rollout worker {rank}", timeout=LONGEST_WAIT_S)
            self._mailbox = self._runtime.mailbox(MAILBOX)
            self._master = self._runtime.connect(master)
            self._master.invoke("join").result()

    def finalize(self) -> None:
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None
        self._rollouts = []

    async def send_weights(
        self, weights: Generator[tuple[str, Tensor], None, None], global_steps: int | None = None
    ) -> None:
        if not self.is_master:
            for _ in weights:  # gathering shards is a collective
                pass
            return
        self._reads.clear()  # buckets are numbered from 0 again
        exposed: tuple[int, Region] | None = None
        for number, bucket in enumerate(self._buckets(weights)):
            if exposed is not None:
                await self._close_when_read(*exposed)
            exposed = number, await self._expose(number, bucket)
        if exposed is not None:
            await self._close_when_read(*exposed)
        await asyncio.gather(*(rollout.send(MAILBOX, None) for rollout in self._rollouts))

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, Tensor], None]:
        while True:
            message = await _in_time(self._mailbox.receive(), "the master has sent no bucket")
            if message is None:
                return
            number, handle, metas = message
            remote = await self._master.aopen(handle)
            weights, parts, offset = {}, [], 0
            for name, dtype, shape in metas:
                weight = weights[name] = torch.empty(shape, dtype=getattr(torch, dtype), device=self.device)
                parts.append(remote[offset : offset + weight.nbytes])
                offset += weight.nbytes
            await self._master.readv(parts, list(weights.values()), notify=b"%d" % number)
            for each in weights.items():
                yield each

    def _buckets(self, weights: Generator[tuple[str, Tensor], None, None]) -> Iterator[dict[str, Tensor]]:
        bucket: dict[str, Tensor] = {}
        num_bytes = 0
        for name, each in weights:
            weight = each.detach().to(self.rollout_dtype or each.dtype).contiguous()
            if bucket and (num_bytes + weight.nbytes > self.bucket_size or len(bucket) == MOST_WEIGHTS):
                yield bucket
                bucket, num_bytes = {}, 0
            bucket[name] = weight
            num_bytes += weight.nbytes
        if bucket:
            yield bucket

    async def _expose(self, number: int, bucket: dict[str, Tensor]) -> Region:
        """Exposes a bucket, and sends its handle to the rollout workers."""
        assert self._runtime is not None
        region = self._runtime.expose(list(bucket.values()), name=f"bucket {number}")
        metas = [[name, str(weight.dtype).removeprefix("torch."), weight.shape] for name, weight in bucket.items()]
        await asyncio.gather(
            *(each.send(MAILBOX, [number, region.handle(peer=each.incarnation), metas]) for each in self._rollouts)
        )
        return region

    async def _close_when_read(self, number: int, region: Region) -> None:
        assert self._runtime is not None
        while (num_reads := self._reads[number]) < len(self._rollouts):
            late = f"{num_reads} of {len(self._rollouts)} rollout workers have read bucket {number}"
            _, tag = await _in_time(self._runtime.notification(), late)
            self._reads[int(tag)] += 1
        region.close()


async def _in_time(waiting: Coroutine[Any, Any, Any], otherwise: str) -> Any:
    try:
        return await asyncio.wait_for(waiting, LONGEST_WAIT_S)
    except asyncio.TimeoutError:
        raise TimeoutError(f"{otherwise} within {LONGEST_WAIT_S:.0f} s") from None


def _host_of_ray() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
