"""One communication engine for PyTorch: `dist.init_process_group("axon")`.

Importing this package registers the backend. torch imports it by itself unless its autoload of backends is turned off.
The first process group loads and starts the engine; the import does not.

    import torch.distributed as dist
    import torch_axon                       # not needed where torch's autoload is on

    dist.init_process_group("axon")         # also "cpu:axon", pg_options=torch_axon.Options(...)

`torch_axon.Runtime` offers the same engine without a process group: other processes invoke functions with tensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING


def _autoload() -> None:
    """Entry point of `torch.backends`; importing the package does all the work.

    It is defined before torch is imported, because torch calls it while this package is still being imported.
    """


from torch_axon._registration import make_default, register  # noqa: E402

if TYPE_CHECKING:
    from torch_axon.elastic import reconfigure as reconfigure
    from torch_axon.elastic import reconfigure_handle as reconfigure_handle
    from torch_axon.fused import all_gather_matmul as all_gather_matmul
    from torch_axon.fused import matmul_reduce_scatter as matmul_reduce_scatter
    from torch_axon.fused import scaled_all_gather_matmul as scaled_all_gather_matmul
    from torch_axon.fused import scaled_matmul_reduce_scatter as scaled_matmul_reduce_scatter
    from torch_axon.options import Options as Options
    from torch_axon.prepared import prepare as prepare
    from torch_axon.runtime import Runtime as Runtime
    from torch_axon.windows import new_window as new_window

__all__ = [
    "Options",
    "Runtime",
    "all_gather_matmul",
    "make_default",
    "matmul_reduce_scatter",
    "new_window",
    "prepare",
    "reconfigure",
    "reconfigure_handle",
    "scaled_all_gather_matmul",
    "scaled_matmul_reduce_scatter",
]

# These names need the extension, which is loaded on first use.
_LAZY = {
    "Options": "options",
    "Runtime": "runtime",
    "all_gather_matmul": "fused",
    "matmul_reduce_scatter": "fused",
    "new_window": "windows",
    "prepare": "prepared",
    "reconfigure": "elastic",
    "reconfigure_handle": "elastic",
    "scaled_all_gather_matmul": "fused",
    "scaled_matmul_reduce_scatter": "fused",
}

register()


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_LAZY[name]}")
    return globals().setdefault(name, getattr(module, name))
