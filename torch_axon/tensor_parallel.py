"""Tensor parallelism that hides its communication: styles for torch's `parallelize_module`.

    parallelize_module(block, mesh["tp"], {
        "attention": FusedColwiseParallel("wq", "wk", "wv"),    # one gather for the three
        "attention.wo": FusedRowwiseParallel(),
        "feed_forward": FusedColwiseParallel("w1", "w3"),
        "feed_forward.w2": FusedRowwiseParallel(),
    })

They stand where `ColwiseParallel(input_layouts=Shard(sequence_dim))` and `RowwiseParallel(output_layouts=
Shard(sequence_dim))` would: what flows between the blocks is spread over the ranks along the sequence, and parameters
become DTensors, sharded in the same way, for optimizers and checkpoints. The mesh's group must be one of "axon".
See docs/fused.md.
"""

from __future__ import annotations

from types import MethodType

import torch
from torch import Size, Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from torch_axon.fused import all_gather_matmul, matmul_reduce_scatter

__all__ = ["FusedColwiseParallel", "FusedRowwiseParallel"]


class FusedColwiseParallel(ParallelStyle):
    """Linear layers whose input is gathered along the sequence; each rank holds a part of their outputs.

    Without names the style is for a Linear. With names it is for a module whose Linear children of these names are
    given one and the same tensor in each forward pass: the first of them gathers it and multiplies for all.

    Input: this rank's part of the sequence, as a tensor (even parts) or a DTensor. Output: a tensor, the whole
    sequence, this rank's part of the last dimension.
    """

    def __init__(self, *linears: str, sequence_dim: int = 1) -> None:
        super().__init__()
        self._names = linears
        self._sequence_dim = sequence_dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        children = [module.get_submodule(name) for name in self._names] or [module]
        linears = [_as_linear(self, child) for child in children]
        shared = _SharedInput(linears, self._sequence_dim)
        for index, linear in enumerate(linears):
            for name in ("weight", "bias"):
                _distribute(linear, name, device_mesh, Shard(0), self.src_data_rank)
            linear._axon_place = (shared, index)  # type: ignore[assignment]
            linear.forward = MethodType(_forward_colwise, linear)  # type: ignore[method-assign]
        module.register_forward_hook(shared.drop, always_call=True)
        return module


class FusedRowwiseParallel(ParallelStyle):
    """A Linear whose output is summed over the ranks and scattered along the sequence.

    Input: a tensor, the whole sequence, this rank's part of the last dimension. Output: this rank's part of the
    sequence, one of those that `Tensor.chunk` would make, as a tensor or, without `use_local_output`, as a DTensor.
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = True) -> None:
        super().__init__()
        self._sequence_dim = sequence_dim
        self._use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        linear = _as_linear(self, module)
        _distribute(linear, "weight", device_mesh, Shard(1), self.src_data_rank)
        _distribute(linear, "bias", device_mesh, Replicate(), self.src_data_rank)
        linear._axon_place = (self._sequence_dim, self._use_local_output)  # type: ignore[assignment]
        linear.forward = MethodType(_forward_rowwise, linear)  # type: ignore[method-assign]
        return module


class _SharedInput:
    """Linears that multiply one gathered input. Products wait here from the first one's call until the last one's.

    They are of one version of the input, with gradients or without, and end with the pass of the Linears' module, also
    if that fails. Copies start without any.
    """

    def __init__(self, linears: list[nn.Linear], sequence_dim: int) -> None:
        self._linears = linears
        self._sequence_dim = sequence_dim
        self._input: Tensor | None = None
        self._state = (0, False)
        self._products: dict[int, Tensor] = {}

    def take(self, index: int, x: Tensor) -> Tensor:
        state = _state_of(x)
        if self._input is not x or self._state != state or index not in self._products:
            self._products = dict(enumerate(self._multiply(x)))
            self._input, self._state = x, state
        product = self._products.pop(index)
        if not self._products:
            self._input = None
        return product

    def drop(self, *_: object) -> None:
        """A hook for the end of the module's pass."""
        self._input, self._products = None, {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_input": None, "_products": {}}

    def _multiply(self, x: Tensor) -> list[Tensor]:
        weights = [_local(linear.weight) for linear in self._linears]
        biases = [None if linear.bias is None else _local(linear.bias) for linear in self._linears]
        mesh = _mesh_of(self._linears[0])
        sizes = None
        if isinstance(x, DTensor):
            sizes = _chunks(x.shape[self._sequence_dim], mesh.size())
            x = x.redistribute(placements=[Shard(self._sequence_dim)]).to_local()
        _, products = all_gather_matmul(
            x,
            [weight.t() for weight in weights],
            biases=biases,
            gather_dim=self._sequence_dim,
            sizes=sizes,
            group=mesh.get_group(),
            return_gathered=False,
        )
        return products


def _state_of(x: Tensor) -> tuple[int, bool]:
    """What else products depend on. Graphs and inference mode know no versions."""
    has_version = not torch.compiler.is_compiling() and not x.is_inference()
    return x._version if has_version else 0, torch.is_grad_enabled()


def _forward_colwise(linear: nn.Linear, x: Tensor) -> Tensor:
    shared, index = linear._axon_place  # type: ignore[misc]
    product: Tensor = shared.take(index, x)
    return product


def _forward_rowwise(linear: nn.Linear, x: Tensor) -> Tensor:
    dim, use_local_output = linear._axon_place  # type: ignore[misc]
    mesh = _mesh_of(linear)
    bias: Tensor | None = linear.bias
    if isinstance(bias, DTensor):
        # Each rank adds it to its part of the sequence: its gradient is the sum of theirs.
        bias = bias.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    output = matmul_reduce_scatter(
        x,
        _local(linear.weight).t(),
        bias=bias,
        scatter_dim=dim,
        sizes=_chunks(x.shape[dim], mesh.size()),
        group=mesh.get_group(),
    )
    if use_local_output:
        return output
    shape = Size((*x.shape[:-1], output.shape[-1]))
    return DTensor.from_local(
        output, mesh, [Shard(dim)], run_check=False, shape=shape, stride=x.new_empty(shape, device="meta").stride()
    )


def _as_linear(style: ParallelStyle, module: nn.Module) -> nn.Linear:
    if not isinstance(module, nn.Linear):
        raise TypeError(f"{type(style).__name__} of a {type(module).__name__}; allowed: nn.Linear")
    return module


def _distribute(
    linear: nn.Linear, name: str, mesh: DeviceMesh, placement: Placement, src_data_rank: int | None
) -> None:
    parameter = getattr(linear, name)
    if parameter is not None:
        distributed = distribute_tensor(parameter, mesh, [placement], src_data_rank=src_data_rank)
        linear.register_parameter(name, nn.Parameter(distributed, requires_grad=parameter.requires_grad))


def _local(parameter: Tensor) -> Tensor:
    assert isinstance(parameter, DTensor)
    if parameter.device_mesh.ndim > 1:
        raise RuntimeError(
            "a fused style multiplies by the weights of several Linears at once, of which FSDP holds one sharded over "
            f"{parameter.device_mesh}; allowed: fully_shard of the module that holds them all"
        )
    return parameter.to_local()


def _mesh_of(linear: nn.Linear) -> DeviceMesh:
    assert isinstance(linear.weight, DTensor)
    return linear.weight.device_mesh


def _chunks(extent: int, num_ranks: int) -> list[int]:
    """What each rank has of a dimension, as DTensor and `Tensor.chunk` share it out."""
    size = -(-extent // num_ranks)
    return [max(0, min(size, extent - size * rank)) for rank in range(num_ranks)]
