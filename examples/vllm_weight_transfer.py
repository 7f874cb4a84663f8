"""A weight-transfer backend "axon" for vLLM: its workers read the trainer's weights one-sidedly.

Import this module in the trainer, and in vLLM by an entry point of the group `vllm.general_plugins`. In vLLM, choose
the backend with `WeightTransferConfig(backend="axon")`. The trainer calls on each of its ranks:

    engine = WeightTransferTrainerFactory.trainer_init(
        AxonTrainerInitInfo(rank=dist.get_rank(), host="10.0.0.3"), client=client, source=ModuleSource(model)
    )
    engine.send_weights()                       # after each training step
    engine.shutdown()

The trainer's rank 0 exposes the weights chunk by chunk, where they are. vLLM's control plane passes a handle of each
chunk to the workers. They read it, all at the same time, and load it. Without shards, the trainer copies nothing. With
FSDP, two whole chunks exist at a time at most.

The control plane also carries the trainer's address, which contains a key. Any process that has it can connect.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.distributed.weight_transfer import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from torch_axon.runtime import Peer, Runtime

BACKEND = "axon"
MOST_WEIGHTS = 2048  # that one region can have


@dataclass
class AxonInitInfo(WeightTransferInitInfo):
    """What each worker gets once.

    Attributes:
        address: the address of the trainer's runtime, in hexadecimal
    """

    address: str


@dataclass
class AxonUpdateInfo(WeightTransferUpdateInfo):
    """What each worker gets of one chunk. The weights are one after the other in the memory of the handle.

    Attributes:
        names: the names of the weights
        dtype_names: their types, such as "bfloat16"
        shapes: their shapes
        handle: the handle of the exposed memory, in hexadecimal
    """

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    handle: str

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.dtype_names) == len(self.shapes):
            raise ValueError(
                f"{len(self.names)} names, {len(self.dtype_names)} dtype_names and {len(self.shapes)} shapes; "
                "allowed: as many of each"
            )


class AxonWeightTransferEngine(WeightTransferEngine[AxonInitInfo, AxonUpdateInfo]):
    """Reads weights from the trainer, in a worker of vLLM."""

    init_info_cls = AxonInitInfo
    update_info_cls = AxonUpdateInfo

    _runtime: Runtime | None = None
    _trainer: Peer

    def init_transfer_engine(self, init_info: AxonInitInfo) -> None:
        self.shutdown()  # a trainer that has restarted connects again
        self._runtime = Runtime(f"vLLM worker {self.parallel_config.rank}")
        self._trainer = self._runtime.connect(bytes.fromhex(init_info.address))

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: AxonUpdateInfo) -> None:
        if self._runtime is None:
            raise RuntimeError("receive_weights: the engine has no trainer; call init_transfer_engine first")
        weights = [
            torch.empty(shape, dtype=getattr(torch, name), device=self.device)
            for name, shape in zip(update_info.dtype_names, update_info.shapes, strict=True)
        ]
        remote = self._trainer.open(bytes.fromhex(update_info.handle))
        parts, offset = [], 0
        for weight in weights:
            parts.append(remote[offset : offset + weight.nbytes])
            offset += weight.nbytes
        self._trainer.readv(parts, weights).result()
        self.model.load_weights(list(zip(update_info.names, weights, strict=True)))

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None


@dataclass
class AxonTrainerInitInfo(TrainerInitInfo):
    """Options of the trainer.

    Attributes:
        host: a name or address of this host at which the workers reach it
        chunk_bytes: the bytes of a chunk; a larger weight is a chunk of its own
    """

    backend: ClassVar[str] = BACKEND

    host: str = "127.0.0.1"
    chunk_bytes: int = 1 << 30


class AxonTrainerWeightTransferEngine(TrainerWeightTransferEngine[AxonTrainerInitInfo]):
    """Exposes the weights of `source` to the workers. Ranks other than 0 only take part in gathering them."""

    init_info_cls = AxonTrainerInitInfo

    _runtime: Runtime | None = None
    _chunk_bytes: int

    @classmethod
    def trainer_init(
        cls, init_info: AxonTrainerInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> AxonTrainerWeightTransferEngine:
        if source is None:
            raise ValueError("trainer_init: source is None; the backend 'axon' needs a WeightSource")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        engine._chunk_bytes = init_info.chunk_bytes
        if engine.is_sender:
            engine._runtime = Runtime("trainer", secret=secrets.token_bytes(32))
            engine._runtime.listen(init_info.host)
            client.init_weight_transfer_engine({"address": engine._runtime.address.hex()})
        return engine

    def send_weights(self) -> None:
        if not self.is_sender:
            for _ in self.source:  # gathering shards is a collective
                pass
            return
        self.client.start_weight_update()
        for chunk in self._chunks():
            self._send(chunk)
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    def _chunks(self) -> Iterator[dict[str, Tensor]]:
        chunk: dict[str, Tensor] = {}
        num_bytes = 0
        for name, weight in self.source:
            if chunk and (num_bytes + weight.nbytes > self._chunk_bytes or len(chunk) == MOST_WEIGHTS):
                yield chunk
                chunk, num_bytes = {}, 0
            chunk[name] = weight.detach().contiguous()
            num_bytes += weight.nbytes
        if chunk:
            yield chunk

    def _send(self, chunk: dict[str, Tensor]) -> None:
        """Returns when all workers have loaded the chunk."""
        if self._runtime is None:
            raise RuntimeError("send_weights: the engine is shut down")
        with self._runtime.expose(list(chunk.values()), name="weights") as region:
            info: dict[str, Any] = {
                "names": list(chunk),
                "dtype_names": [str(weight.dtype).removeprefix("torch.") for weight in chunk.values()],
                "shapes": [list(weight.shape) for weight in chunk.values()],
                "handle": region.handle().hex(),
            }
            self.client.update_weights(info)


WeightTransferEngineFactory.register_engine(BACKEND, AxonWeightTransferEngine)
WeightTransferTrainerFactory.register_engine(BACKEND, AxonTrainerWeightTransferEngine)
