"""Checks the arguments of the fused products and converts them to the operators' matrices and back."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T", Tensor, Tensor | None)

_PLAIN_TYPES = (Tensor, torch.nn.Parameter, type(None))


class Rows:
    """Views a tensor as a matrix whose rows begin with the gathered or scattered dimension, and restores its shape."""

    def __init__(self, x: Tensor, dim: int) -> None:
        moved = x.movedim(dim, 0) if dim else x
        self._dim = dim
        self._middle = moved.shape[1:-1]
        self._rows_each = prod(self._middle)
        self.matrix = moved.reshape(moved.shape[0] * self._rows_each, moved.shape[-1]) if self._middle else x

    def counts(self, shares: Sequence[int]) -> list[int]:
        """Returns the number of matrix rows of every rank, given their extents along the dimension."""
        return [share * self._rows_each for share in shares]

    def restore(self, matrix: Tensor, extent: int) -> Tensor:
        if not self._middle:
            return matrix
        restored = matrix.view(extent, *self._middle, matrix.shape[-1])
        return restored.movedim(0, self._dim) if self._dim else restored


def are_plain(*tensors: Tensor | None) -> bool:
    """Returns whether no compiler, torch-function mode or tensor subclass intercepts calls in Python."""
    if torch.compiler.is_compiling() or torch._C._len_torch_function_stack():
        return False
    return all(type(tensor) in _PLAIN_TYPES for tensor in tensors)


def dimension(what: str, dim: int, x: Tensor) -> int:
    """Returns a dimension of `x` as a number from 0 on.

    Raises:
        ValueError: `x` has fewer than 2 dimensions, or not this one
    """
    if x.ndim < 2:
        raise ValueError(f"{what} of a tensor of shape {list(x.shape)}; allowed: tensors of at least 2 dimensions")
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"{what} is {dim}; allowed: {-x.ndim} to {x.ndim - 1}")
    return dim % x.ndim


def rows_dimension(what: str, dim: int, x: Tensor) -> int:
    """Returns a dimension of `x` other than the last one, as a number from 0 on.

    Raises:
        ValueError: `x` does not have this dimension, or it is the last one
    """
    positive = dimension(what, dim, x)
    if positive == x.ndim - 1:
        raise ValueError(f"{what} is {dim}, the dimension that the product contracts; allowed: any other")
    return positive


def as_lists(
    operator: str, weights: Tensor | Sequence[Tensor], biases: Tensor | Sequence[Tensor | None] | None
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Returns weights and biases as lists of equal lengths.

    Raises:
        ValueError: there are no weights, or the number of biases differs
    """
    several = [weights] if isinstance(weights, Tensor) else list(weights)
    if not several:
        raise ValueError(f"{operator}: weights is empty; allowed: a tensor, or a sequence of at least one")
    if biases is None:
        return several, [None] * len(several)
    addends: list[Tensor | None] = [biases] if isinstance(biases, Tensor) else list(biases)
    if len(addends) != len(several):
        raise ValueError(f"{operator}: {len(addends)} biases for {len(several)} weights; allowed: None, or one each")
    return several, addends


def by_name(name: str, given: object, tensors: Sequence[T]) -> dict[str, T]:
    """Returns the name that errors use for each tensor of an argument, which was given as one tensor or a sequence."""
    if given is None or isinstance(given, Tensor):
        return {name: tensors[0]}
    return {f"{name}[{index}]": tensor for index, tensor in enumerate(tensors)}


def fit(x: Tensor, depth: int, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> bool:
    """Returns whether all factors fit, so that the slower checks can be skipped: overlap leaves little host time."""
    device, dtype = x.device, x.dtype
    for weight, bias in zip(weights, biases, strict=True):
        if weight.ndim != 2 or weight.shape[0] != depth or weight.dtype != dtype or weight.device != device:
            return False
        if bias is not None and (bias.shape != weight.shape[1:] or bias.dtype != dtype or bias.device != device):
            return False
    return True


def check_forms(operator: str, tensors: dict[str, Tensor | None]) -> None:
    """Refuses what is not a strided tensor in this process's memory, such as a DTensor.

    Raises:
        TypeError: a tensor has another form; the text names the argument
    """
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            form = f"is a {type(tensor).__name__}"
        elif hasattr(tensor, "to_local"):
            form = f"is a {type(tensor).__name__}, which is distributed over the ranks"
        elif tensor.is_nested or tensor.layout != torch.strided or tensor.is_quantized:
            form = f"is nested, quantized or has layout {tensor.layout}"
        else:
            continue
        raise TypeError(f"{operator}: argument '{name}' {form}; allowed: strided tensors, or a DTensor's to_local()")


def check_factors(
    operator: str, x: Tensor, depth: int, weights: dict[str, Tensor], biases: dict[str, Tensor | None]
) -> None:
    """Checks shapes and devices of weights and biases.

    `depth` is the number of columns of the gathered left factor.

    Raises:
        ValueError: a shape or a device does not fit; the text names the argument
    """
    for (name, weight), (bias_name, bias) in zip(weights.items(), biases.items(), strict=True):
        _check_device(operator, name, weight, x)
        if weight.ndim != 2 or weight.shape[0] != depth:
            _reject(operator, name, f"has shape {list(weight.shape)}", f"[{depth}, n]")
        if bias is not None:
            _check_device(operator, bias_name, bias, x)
            _check_shape(operator, bias_name, bias, [weight.shape[1]])


def check_types(operator: str, x: Tensor, others: dict[str, Tensor | None]) -> None:
    """Checks that all tensors have one type after autocast.

    Raises:
        ValueError: a type differs; the text names the argument
    """
    allowed = type_under_autocast(x)
    for name, tensor in others.items():
        if tensor is not None and type_under_autocast(tensor) != allowed:
            _reject(operator, name, f"is of {type_under_autocast(tensor)}", f"{allowed}, the type of the left factor")


def check_scales(
    operator: str, x: Tensor, scale_x: Tensor, weights: dict[str, Tensor], scales: dict[str, Tensor]
) -> None:
    """Checks the shapes of float8 scales: one per row and column, or one per tensor.

    The number of dimensions of `scale_x` distinguishes the two cases, and it is equal on all ranks.

    Raises:
        ValueError: a shape does not fit; the text names the argument
    """
    if len(scales) != len(weights):
        raise ValueError(f"{operator}: {len(scales)} scales for {len(weights)} weights; allowed: one per weight")
    if scale_x.ndim > 1:
        _check_shape(operator, "scale_x", scale_x, [*x.shape[:-1], 1])
        for (name, scale), weight in zip(scales.items(), weights.values(), strict=True):
            _check_shape(operator, name, scale, [1, weight.shape[1]])
        return
    for name, scale in {"scale_x": scale_x, **scales}.items():
        if scale.ndim > 1 or scale.numel() != 1:
            _reject(operator, name, f"has shape {list(scale.shape)}", "[] or [1]")


def type_under_autocast(tensor: Tensor) -> torch.dtype:
    """Returns the type that autocast gives to a factor of matmul: floating types narrower than double are cast."""
    device = tensor.device.type
    casts = torch.is_autocast_enabled(device) and tensor.is_floating_point() and tensor.dtype != torch.float64
    return torch.get_autocast_dtype(device) if casts else tensor.dtype


def shares_of_shards(operator: str, own: int, sizes: Sequence[int] | None, group: dist.ProcessGroup) -> list[int]:
    """Returns every rank's extent along the gathered dimension.

    Raises:
        ValueError: `sizes` does not fit the group or this rank's shard
    """
    if sizes is None:
        return [own] * group.size()
    _check_number(operator, sizes, group)
    if sizes[group.rank()] != own:
        raise ValueError(f"{operator}: sizes[{group.rank()}] is {sizes[group.rank()]}, but this rank's shard has {own}")
    return list(sizes)


def shares_of_whole(operator: str, whole: int, sizes: Sequence[int] | None, group: dist.ProcessGroup) -> list[int]:
    """Returns every rank's extent of the scattered dimension `whole`.

    Raises:
        ValueError: `sizes` does not fit, or the dimension does not divide evenly and `sizes` is missing
    """
    if sizes is None:
        if whole % group.size():
            raise ValueError(f"{operator}: {whole} does not divide evenly by {group.size()} ranks; give sizes=")
        return [whole // group.size()] * group.size()
    _check_number(operator, sizes, group)
    if sum(sizes) != whole:
        raise ValueError(f"{operator}: sizes {list(sizes)} sum to {sum(sizes)}; allowed: {whole}, the scattered extent")
    return list(sizes)


def _check_number(operator: str, sizes: Sequence[int], group: dist.ProcessGroup) -> None:
    if len(sizes) != group.size():
        raise ValueError(f"{operator}: {len(sizes)} sizes for {group.size()} ranks; allowed: one per rank")


def _check_device(operator: str, name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.device != x.device:
        _reject(operator, name, f"is on {tensor.device}", f"{x.device}, the device of the left factor")


def _check_shape(operator: str, name: str, tensor: Tensor, shape: list[int]) -> None:
    if list(tensor.shape) != shape:
        _reject(operator, name, f"has shape {list(tensor.shape)}", str(shape))


def _reject(operator: str, name: str, found: str, allowed: str) -> NoReturn:
    raise ValueError(f"{operator}: argument '{name}' {found}; allowed: {allowed}")
