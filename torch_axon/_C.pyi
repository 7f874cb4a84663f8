# ruff: noqa: N999
from datetime import timedelta
from typing import TypedDict

import torch
from torch import Tensor
from torch._C import _cuda_CUDAAllocator
from torch._C._distributed_c10d import Backend, ErrorType, _DistributedBackendOptions

class Options(Backend.Options):
    def __init__(self, timeout: timedelta = ...) -> None: ...
    def __deepcopy__(self, memo: dict[int, object]) -> Options: ...

class PeerPath(TypedDict):
    same_host: bool
    lanes: list[tuple[str, str]]
    kernels: bool | None
    obstacle: str
    num_direct: int

class AxonBackend(Backend):
    @property
    def options(self) -> Options: ...
    @property
    def num_direct(self) -> int: ...
    @property
    def mem_allocator(self) -> _cuda_CUDAAllocator: ...
    def path_to(self, rank: int) -> PeerPath: ...
    def get_error(self) -> ErrorType: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def perform_nocolor_split(self, device: torch.device) -> None: ...
    def _set_default_timeout(self, timeout: timedelta) -> None: ...

class Setting(TypedDict):
    name: str
    read_by: str
    default: str
    allowed: str
    description: str
    value: str
    source: str

def create(group: _DistributedBackendOptions, options: Options) -> AxonBackend: ...
def shut_down() -> None: ...
def settings() -> list[Setting]: ...

# None: to be called by the dispatcher.
def all_gather_matmul(
    x: Tensor, weights: list[Tensor], biases: list[Tensor | None], group_name: str, return_gathered: bool, /
) -> tuple[Tensor, list[Tensor]] | None: ...
def matmul_reduce_scatter(
    x: Tensor, weight: Tensor, bias: Tensor | None, reduce_op: str, group_name: str, /
) -> Tensor | None: ...
