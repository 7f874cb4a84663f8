"""NIXL's lists of descriptors: memory by address, length in bytes and number of the device."""

from __future__ import annotations

import io
import pickle
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_axon.nixl._enums import nixl_mem_t
from torch_axon.nixl._errors import nixlMismatchError, nixlNotFoundError

Rows = npt.NDArray[np.uint64]  # [n, 3]: address, bytes, device

_LEAST_CAPACITY = 8


class _List:
    """What the lists have in common. Each row may have an extra value, of the kind that `_EXTRA` names.

    Like NIXL's, they have neither length nor iterator: a list is true, even if it is empty.
    """

    _EXTRA = ""  # its name; "": none

    def __init__(
        self, type: nixl_mem_t, descs: Rows | list[tuple[Any, ...]] | int | None = None, *, init_size: int = 0
    ) -> None:
        if not isinstance(type, nixl_mem_t):
            raise TypeError(f"{self._name()}: type is {type!r}; allowed: a nixl_mem_t such as DRAM_SEG")
        self._type = type
        self._extras: list[bytes] = []
        self._count = 0
        if isinstance(descs, np.ndarray):
            self._rows = self._checked(descs).astype(np.uint64)
            self._count = len(self._rows)
            self._extras = [b""] * self._count if self._EXTRA else []
        elif isinstance(descs, list):
            self._rows = np.empty((len(descs), 3), dtype=np.uint64)
            self._fill(descs)
        elif descs is None or isinstance(descs, int):
            self._count = descs or init_size
            if self._count < 0:
                raise TypeError(f"{self._name()}: init_size is {self._count}; allowed: 0 or more")
            self._rows = np.zeros((max(self._count, _LEAST_CAPACITY), 3), dtype=np.uint64)
            self._extras = [b""] * self._count if self._EXTRA else []
        else:
            raise TypeError(f"{self._name()}: descs is of type {descs.__class__.__name__}; allowed: list, numpy array")

    @classmethod
    def _name(cls) -> str:
        return cls.__name__

    @classmethod
    def _arity(cls) -> int:
        return 4 if cls._EXTRA else 3

    @staticmethod
    def _checked(descs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if descs.ndim != 2 or descs.shape[1] != 3:
            raise ValueError("descs must be a Nx3 numpy array")
        if descs.dtype not in (np.uint64, np.int64):
            raise ValueError("descs must be a Nx3 numpy array of uint64 or int64")
        if not descs.flags.c_contiguous:
            raise ValueError("descs must be a C-contiguous numpy array")
        if descs.dtype == np.int64 and descs.size and int(descs.min()) < 0:
            raise ValueError(f"descs has a number of {descs.min()}; allowed: 0 or more")
        return descs

    def _fill(self, descs: list[tuple[Any, ...]]) -> None:
        arity = self._arity()
        for each in descs:
            if not isinstance(each, tuple):
                raise TypeError("Each descriptor must be a tuple when provided as a list")
            if len(each) != arity:
                raise ValueError(f"Each descriptor tuple must have exactly {arity} elements")
        self._rows[:] = self._numbers([value for each in descs for value in each[:3]])
        self._count = len(descs)
        if self._EXTRA:
            self._extras = [self._extra_of(each[3]) for each in descs]

    def _numbers(self, values: Iterable[Any]) -> Rows:
        """Returns the numbers of one or more descriptors, [n, 3].

        Raises:
            RuntimeError: one of them is not an integer from 0 on
        """
        try:
            return np.array(array("Q", values), dtype=np.uint64).reshape(-1, 3)
        except (OverflowError, TypeError) as error:
            raise RuntimeError(f"{self._name()}: a descriptor is not of three integers from 0 on: {error}") from None

    def _extra_of(self, value: Any) -> bytes:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        raise RuntimeError(f"{self._name()}: {self._EXTRA} is of type {type(value).__name__}; allowed: str and bytes")

    def rows(self) -> Rows:
        """Returns the rows, [n, 3]; a view, which later changes of the list may or may not reach."""
        return self._rows[: self._count]

    def getType(self) -> nixl_mem_t:
        return self._type

    def descCount(self) -> int:
        return self._count

    def isEmpty(self) -> bool:
        return self._count == 0

    def addDesc(self, desc: tuple[Any, ...]) -> None:
        """Adds a descriptor.

        Raises:
            TypeError: it is not a tuple
            IndexError: it has too few elements
        """
        self._insert(self._count, desc)

    append = addDesc

    def _insert(self, at: int, desc: tuple[Any, ...]) -> None:
        if not isinstance(desc, tuple):
            raise TypeError(f"{self._name()}: a descriptor is of type {type(desc).__name__}; allowed: tuple")
        if len(desc) < self._arity():
            raise IndexError(f"{self._name()}: a descriptor has {len(desc)} elements; allowed: {self._arity()}")
        row = self._numbers(desc[:3])[0]
        extra = self._extra_of(desc[3]) if self._EXTRA else b""
        if at == self._count:
            if at == len(self._rows):
                self._rows = np.concatenate(
                    [self._rows, np.empty_like(self._rows, shape=(max(at, _LEAST_CAPACITY), 3))]
                )
            self._count += 1
            if self._EXTRA:
                self._extras.append(b"")
        self._rows[at] = row
        if self._EXTRA:
            self._extras[at] = extra

    def _position(self, index: int) -> int:
        if not 0 <= index < self._count:
            raise IndexError("Index is out of range")
        return index

    def _extra(self, index: int) -> Any:
        return self._extras[index]

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        row = tuple(int(value) for value in self._rows[self._position(index)])
        return (*row, self._extra(index)) if self._EXTRA else row

    def __setitem__(self, index: int, desc: tuple[Any, ...]) -> None:
        self._insert(self._position(index), desc)

    def __iter__(self) -> Any:
        raise TypeError(f"{self._name()} is not iterable; use descCount() and the index")

    def remDesc(self, index: int) -> None:
        """Removes a descriptor.

        Raises:
            IndexError: there is none of this number
        """
        self._rows = np.delete(self.rows(), self._position(index), axis=0)
        self._count -= 1
        if self._EXTRA:
            del self._extras[index]

    def clear(self) -> None:
        self._count = 0
        self._extras = []

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _List)
            and type(self) is type(other)
            and self._type == other._type
            and self._extras == other._extras
            and np.array_equal(self.rows(), other.rows())
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self._name()}({self._type.name}, {self._count} descriptors)"

    def print(self) -> None:
        """Prints the descriptors to stdout."""
        lines = [f"{self!r}:", *(f"  {self[i]}" for i in range(self._count))]
        print("\n".join(lines))


class _Indexed(_List):
    """Lists that can be searched, and pickled."""

    def index(self, desc: tuple[Any, ...]) -> int:
        """Returns the number of the first descriptor with this address, length and device.

        Raises:
            nixlNotFoundError: there is none
        """
        found = np.flatnonzero((self.rows() == np.array(desc[:3], dtype=np.uint64)).all(axis=1))
        if len(found) == 0:
            raise nixlNotFoundError(f"the list has no descriptor {desc}")
        return int(found[0])

    def __reduce__(self) -> tuple[Any, ...]:
        # Plain values only, so that the bytes do not depend on this module's inner names.
        return _restored, (type(self).__name__, int(self._type), self.rows().tobytes(), self._extras)


class nixlXferDList(_Indexed):
    """Memory of a transfer: tuples of address, bytes and device."""


class nixlRegDList(_Indexed):
    """Memory to register: tuples of address, bytes, device and a text for backends of NIXL, which this one ignores."""

    _EXTRA = "metaInfo"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._owners: list[object] = [None] * self._count  # what keeps the memory of each descriptor

    def own(self, owners: Sequence[object]) -> None:
        """Sets what keeps the memory of each descriptor, as long as the list has that descriptor."""
        self._owners = list(owners)

    def owner(self, index: int) -> object:
        """Returns what keeps the memory of a descriptor, or None."""
        return self._owners[index]

    def _insert(self, at: int, desc: tuple[Any, ...]) -> None:
        before = self[at][:3] if at < self._count else None
        super()._insert(at, desc)
        if before is None:
            self._owners.append(None)
        elif self[at][:3] != before:
            self._owners[at] = None

    def remDesc(self, index: int) -> None:
        super().remDesc(index)
        del self._owners[index]

    def clear(self) -> None:
        super().clear()
        self._owners = []

    def trim(self) -> nixlXferDList:
        """Returns the same memory as a list for transfers."""
        return nixlXferDList(self._type, self.rows().copy())


class nixlRemoteDList(_List):
    """Memory of several agents: tuples of address, bytes, device and the agent's name."""

    _EXTRA = "agent"

    def _extra(self, index: int) -> str:
        return self._extras[index].decode()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(f"cannot pickle '{self._name()}' object")


_CLASSES: dict[str, type[_List]] = {"nixlXferDList": nixlXferDList, "nixlRegDList": nixlRegDList}


def _restored(name: str, type: int, rows: bytes, extras: list[bytes]) -> _List:
    restored = _CLASSES[name](nixl_mem_t(type), np.frombuffer(rows, dtype=np.uint64).reshape(-1, 3))
    if len(extras) != len(restored._extras) or not all(isinstance(extra, bytes) for extra in extras):
        raise ValueError(f"{name}: {len(extras)} texts for {restored.descCount()} descriptors")
    restored._extras = list(extras)
    return restored


class _Unpickler(pickle.Unpickler):
    """Reads lists only: pickles of others may run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (__name__, _restored.__name__):
            return _restored
        raise pickle.UnpicklingError(f"it contains {module}.{name}")


def unpickled(data: bytes) -> nixlXferDList | nixlRegDList:
    """Reads a pickled list.

    Raises:
        nixlMismatchError: the bytes are something else
    """
    try:
        loaded = _Unpickler(io.BytesIO(data)).load()
        if not isinstance(loaded, nixlXferDList | nixlRegDList):
            raise pickle.UnpicklingError(f"they are of type {type(loaded).__name__}")
        return loaded
    except Exception as error:  # damaged pickles raise many kinds
        raise nixlMismatchError(f"these bytes are no list of descriptors of this module: {error}") from error
