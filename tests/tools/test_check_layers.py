from pathlib import Path

import check_layers
import pytest


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("base/gate.hpp", '#include "transport/transport.hpp"'),
        ("transport/ucx/worker.cpp", '#include "engine/engine.hpp"'),
        ("engine/engine.hpp", "#include <torch/torch.h>"),
        ("engine/engine.hpp", "#include <ucp/api/ucp.h>"),
        ("transport/loopback.cpp", "#  include <ucs/type/status.h>"),
        ("base/log.cpp", 'const char* level = std::getenv("AXON_LOG");'),
        ("cuda/stream.hpp", '#include "kernels/signal.cuh"'),
        ("kernels/copy.cu", '#include "memory/buffer.hpp"'),
        ("collectives/ring.cpp", '#include "ring.hpp"'),
        ("c10d/backend.hpp", '#include "rpc/core/handshake/listener.hpp"'),
        ("rpc/core/handshake/listener.hpp", '#include "ipc/arena.hpp"'),
        ("rpc/core/handshake/listener.hpp", '#include "c10d/work.hpp"'),
        ("axon/runtime.cpp", '#include "rpc/python/python_runtime.hpp"'),
        ("rpc/python/bindings.cpp", '#include "axon/runtime.hpp"'),
        ("rpc/core/runtime.cpp", '#include "axon/runtime.hpp"'),
        ("ipc/arena.cpp", '#include "engine/engine.hpp"'),
        ("fused/matmul/tile_choice.cpp", '#include "c10d/backend.hpp"'),
    ],
)
def test_breach_is_found(file: str, line: str) -> None:
    assert check_layers.check_line(file, line) is not None


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("engine/engine.hpp", '#include "base/task.hpp"'),
        ("engine/engine.hpp", '#include "engine/progress.hpp"'),
        ("engine/engine.hpp", "#include <vector>"),
        ("rpc/core/handshake/listener.hpp", '#include "rpc/core/handshake/secret.hpp"'),
        ("rpc/core/handshake/listener.hpp", '#include "engine/engine.hpp"'),
        ("axon/runtime.cpp", '#include "rpc/core/runtime.hpp"'),
        ("c10d/backend.hpp", "#include <torch/csrc/distributed/c10d/Backend.hpp>"),
        ("transport/ucx/worker.hpp", "#include <ucp/api/ucp.h>"),
        ("base/config.cpp", "const char* value = std::getenv(name);"),
        ("base/log.hpp", "// never calls getenv()"),
        ("kernels/copy.cu", '#include "kernels/copy.cuh"'),
        ("kernels/copy.cuh", '#include "cuda/device_types.hpp"'),
    ],
)
def test_allowed_line_passes(file: str, line: str) -> None:
    assert check_layers.check_line(file, line) is None


def test_breaches_name_file_and_line(tmp_path: Path) -> None:
    source = tmp_path / "base" / "gate.hpp"
    source.parent.mkdir()
    source.write_text('#pragma once\n#include "engine/engine.hpp"\n')
    assert list(check_layers.breaches(tmp_path)) == [f'{source}:2: base may not include "engine/engine.hpp"']
