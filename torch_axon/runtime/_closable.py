"""What a runtime and a peer have in common: they are closed where their block ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

C = TypeVar("C", bound="Closable")


class Closable(ABC):
    """A context manager, and an asynchronous one: leaving it closes it, without draining if an exception ends it."""

    @abstractmethod
    def close(self, drain: bool = True, timeout: float | None = None) -> bool: ...

    @abstractmethod
    async def aclose(self, drain: bool = True, timeout: float | None = None) -> bool: ...

    def __enter__(self: C) -> C:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    async def __aenter__(self: C) -> C:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose(drain=error is None)
