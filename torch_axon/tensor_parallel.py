"""Styles for torch's `parallelize_module` that overlap communication with matrix products.

    parallelize_module(block, mesh["tp"], {
        "attention": FusedColwiseParallel("wq", "wk", "wv"),    # one gather for the three
        "attention.wo": FusedRowwiseParallel(),
        "feed_forward": FusedColwiseParallel("w1", "w3"),
        "feed_forward.w2": FusedRowwiseParallel(),
    })

The styles replace `ColwiseParallel(input_layouts=Shard(sequence_dim))` and `RowwiseParallel(output_layouts=
Shard(sequence_dim))`. Activations between the blocks are sharded along the sequence. Parameters become DTensors with
the same sharding as under those styles, so optimizers and checkpoints work unchanged. The mesh's group must use the
backend "axon". See docs/fused.md.
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
    """Linear layers whose input is gathered along the sequence, with each rank computing a shard of their outputs.

    Without names the style applies to a Linear. With names it applies to a module whose Linear children of these names
    receive the same tensor object in each forward pass. The first of them gathers it and multiplies for all.

    The input is this rank's shard of the sequence, as a DTensor or, if all shards have equal extents, as a tensor. The
    output is a tensor with the whole sequence and this rank's shard of the last dimension.

    Args:
        linears: names of the module's Linear children that share their input; none for a Linear itself
        sequence_dim: the dimension of the input along which it is sharded

    Raises:
        TypeError: by `parallelize_module`, if a module is not a Linear
        AttributeError: by `parallelize_module`, if the module has no child of a given name
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

    The input is a tensor with the whole sequence and this rank's shard of the last dimension. The output is this rank's
    shard of the sequence, with the extents that `Tensor.chunk` would produce.

    Args:
        sequence_dim: the dimension of the output along which it is scattered
        use_local_output: whether the output is a tensor rather than a DTensor

    Raises:
        TypeError: by `parallelize_module`, if the module is not a Linear
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
    """Holds the products of Linears that share one gathered input, from the first Linear's call until the last one's.

    The products belong to one version of the input and to one gradient mode. They are dropped at the end of the forward
    pass of the Linears' module, also if that pass fails. Copies of this object start empty.
    """

    def __init__(self, linears: list[nn.Linear], sequence_dim: int) -> None:
        self._linears = linears
        self._sequence_dim = sequence_dim
        self._input: Tensor | None = None
        self._state = (0, False)
        self._products: dict[int, Tensor] = {}

    def take(self, index: int, x: Tensor) -> Tensor:
        """Returns the product of one Linear, computing those of all Linears for a new input."""
        state = _state_of(x)
        if self._input is not x or self._state != state or index not in self._products:
            self._products = dict(enumerate(self._multiply(x)))
            self._input, self._state = x, state
        product = self._products.pop(index)
        if not self._products:
            self._input = None
        return product

    def drop(self, *_: object) -> None:
        """Drops all products: a hook for the end of the module's forward pass."""
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
    """Returns the version of the input, where it has one, and the gradient mode.

    Compiled graphs and inference mode have no tensor versions.
    """
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
        # Each rank adds the bias to its own shard of the sequence, so its gradient is a sum over the ranks.
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
        raise TypeError(f"{type(style).__name__} is applied to a {type(module).__name__}; allowed: nn.Linear")
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
            "a fused style multiplies by the weights of several Linears at once, but FSDP shards one of them over "
            f"{parameter.device_mesh}; apply fully_shard to the module that contains all of them"
        )
    return parameter.to_local()


def _mesh_of(linear: nn.Linear) -> DeviceMesh:
    assert isinstance(linear.weight, DTensor)
    return linear.weight.device_mesh


def _chunks(extent: int, num_ranks: int) -> list[int]:
    """Returns each rank's extent of a dimension, as DTensor and `Tensor.chunk` split it."""
    size = -(-extent // num_ranks)
    return [max(0, min(size, extent - size * rank)) for rank in range(num_ranks)]
