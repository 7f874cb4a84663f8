"""Stand-ins for the interfaces of vLLM and verl that examples implement.

Of what the real ones check, they check three things. An engine implements the abstract methods that are listed here.
Values from vLLM's control plane fit their dataclass. A backend of vLLM is registered once. Nothing else is checked,
neither configurations nor the signatures of the engines' own methods.

The signatures of vLLM follow its main branch in 2026, in which a client's `finish_weight_update` takes a
`weight_version`. Those of verl follow its main branch since `send_weights` and `receive_weights` take `global_steps`.
Its version 0.8.0.dev of 29 January 2026 did not have that yet.

`install_vllm` and `install_verl` make them importable in this process.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

Init = TypeVar("Init")
Update = TypeVar("Update")


def _provide(name: str, **members: object) -> None:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    vars(sys.modules[name]).update(members)


# vLLM, vllm/distributed/weight_transfer


class WeightTransferInitInfo(ABC):  # noqa: B024 as in vLLM
    pass


class WeightTransferUpdateInfo(ABC):  # noqa: B024 as in vLLM
    pass


class WeightTransferEngine(ABC, Generic[Init, Update]):
    init_info_cls: type
    update_info_cls: type

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: nn.Module) -> None:
        self.config, self.device, self.model = config, device, model
        self.parallel_config, self.model_config = vllm_config.parallel_config, vllm_config.model_config

    def parse(self, kind: type, values: dict[str, Any]) -> Any:
        try:
            return kind(**values)
        except TypeError as error:
            raise ValueError(f"Invalid {kind.__name__}: {error}") from error

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse(self.update_info_cls, update_info))

    @abstractmethod
    def init_transfer_engine(self, init_info: Init) -> None: ...

    @abstractmethod
    def start_weight_update(self) -> None: ...

    @abstractmethod
    def finish_weight_update(self) -> None: ...

    @abstractmethod
    def receive_weights(self, update_info: Update) -> None: ...

    @abstractmethod
    def shutdown(self) -> None: ...


@dataclass
class TrainerInitInfo:
    backend: ClassVar[str]

    rank: int = field(kw_only=True)

    @property
    def is_sender(self) -> bool:
        return self.rank == 0


class VLLMWeightSyncClient(Protocol):
    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


class WeightSource(ABC):
    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, Tensor]]: ...


class ModuleSource(WeightSource):
    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, each in self._module.named_parameters():
            yield name, each.full_tensor() if hasattr(each, "full_tensor") else each


class TrainerWeightTransferEngine(ABC, Generic[Init]):
    def __init__(self, *, client: Any, source: WeightSource | None = None, is_sender: bool = True) -> None:
        self.client, self.source, self.is_sender = client, source, is_sender

    @classmethod
    @abstractmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: WeightSource | None = None) -> Any: ...

    @abstractmethod
    def send_weights(self) -> None: ...


class _Factory:
    def __init__(self) -> None:
        self._engines: dict[str, Any] = {}

    def register_engine(self, name: str, engine: type) -> None:
        if name in self._engines:
            raise ValueError(f"{name} is registered already")
        self._engines[name] = engine

    def create_engine(self, config: Any, vllm_config: Any, device: torch.device, model: nn.Module) -> Any:
        return self._engines[config.backend](config, vllm_config, device, model)

    def trainer_init(self, init_info: Any, *, client: Any, source: WeightSource | None = None) -> Any:
        return self._engines[init_info.backend].trainer_init(init_info, client=client, source=source)


def install_vllm() -> None:
    """Layerwise reloading counts its begin and its end in the model's `reloads`."""
    if "vllm" in sys.modules:
        return
    _provide(
        "vllm.distributed.weight_transfer",
        WeightTransferEngineFactory=_Factory(),
        WeightTransferTrainerFactory=_Factory(),
    )
    kinds = (
        *(WeightTransferInitInfo, WeightTransferUpdateInfo, WeightTransferEngine),
        *(TrainerInitInfo, TrainerWeightTransferEngine, VLLMWeightSyncClient, WeightSource),
    )
    _provide("vllm.distributed.weight_transfer.base", **{kind.__name__: kind for kind in kinds})
    _provide(
        "vllm.model_executor.model_loader.reload",
        initialize_layerwise_reload=lambda model: model.reloads.append("begun"),
        finalize_layerwise_reload=lambda model, model_config: model.reloads.append("ended"),
    )


# verl, verl/checkpoint_engine


class CheckpointEngine(ABC):
    @abstractmethod
    def prepare(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def build_topology(cls, trainer_world_size: int, rollout_world_size: int, metadata: list[Any]) -> Any: ...

    @abstractmethod
    def init_process_group(self, **kwargs: Any) -> None: ...

    @abstractmethod
    def finalize(self) -> None: ...

    @abstractmethod
    async def send_weights(self, weights: Any, global_steps: int | None = None) -> None: ...

    @abstractmethod
    def receive_weights(self, global_steps: int | None = None) -> Any: ...


class CheckpointEngineRegistry:
    engines: ClassVar[dict[str, Any]] = {}

    @staticmethod
    def register(backend: str) -> Callable[[type], type]:
        def add(engine: type) -> type:
            CheckpointEngineRegistry.engines[backend] = engine
            return engine

        return add


def install_verl() -> None:
    if "verl" not in sys.modules:
        _provide(
            "verl.checkpoint_engine.base",
            CheckpointEngine=CheckpointEngine,
            CheckpointEngineRegistry=CheckpointEngineRegistry,
        )
