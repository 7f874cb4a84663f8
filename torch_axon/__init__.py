"""One communication engine for PyTorch: `dist.init_process_group("axon")`.

Importing this package registers the backend; torch does so by itself where its entry points are on. The engine is
loaded and started by the first process group, not by the import.

    import torch.distributed as dist
    import torch_axon                       # not needed where torch's autoload is on

    dist.init_process_group("axon")         # also "cpu:axon", pg_options=torch_axon.Options(...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING


def _autoload() -> None:
    """Entry point of `torch.backends`: importing the package is all there is to it.

    Stands before the import of torch, which calls it while this package is still being imported.
    """


from torch_axon._registration import make_default, register  # noqa: E402

if TYPE_CHECKING:
    from torch_axon.options import Options as Options

__all__ = ["Options", "make_default"]

register()


def __getattr__(name: str) -> object:
    # Options derives from a C++ class: the extension is loaded only when somebody asks.
    if name == "Options":
        from torch_axon.options import Options

        return Options
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
