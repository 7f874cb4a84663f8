from pathlib import Path

import check_layers
import pytest


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("base/gate.hpp", '#include "transport/transport.hpp"'),
        ("transport/ucx/worker.cpp", '#include "comm/engine.hpp"'),
        ("comm/engine.hpp", "#include <torch/torch.h>"),
        ("comm/engine.hpp", "#include <ucp/api/ucp.h>"),
        ("transport/loopback.cpp", "#  include <ucs/type/status.h>"),
        ("base/log.cpp", 'const char* level = std::getenv("AXON_LOG");'),
        ("cuda/stream.hpp", '#include "device/signal.cuh"'),
        ("device/copy.cuh", '#include "cuda/stream.hpp"'),
        ("device/copy.cu", '#include "memory/buffer.hpp"'),
        ("collectives/ring.cpp", '#include "ring.hpp"'),
        ("c10d/backend.hpp", '#include "runtime/handshake/listener.hpp"'),
        ("runtime/handshake/listener.hpp", '#include "stream/arena.hpp"'),
        ("runtime/handshake/listener.hpp", '#include "c10d/work.hpp"'),
        ("axon/runtime.cpp", '#include "runtime_python/python_runtime.hpp"'),
        ("runtime_python/bindings.cpp", '#include "axon/runtime.hpp"'),
        ("runtime/runtime.cpp", '#include "axon/runtime.hpp"'),
    ],
)
def test_breach_is_found(file: str, line: str) -> None:
    assert check_layers.check_line(file, line) is not None


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("comm/engine.hpp", '#include "base/task.hpp"'),
        ("comm/engine.hpp", '#include "comm/progress.hpp"'),
        ("comm/engine.hpp", "#include <vector>"),
        ("runtime/handshake/listener.hpp", '#include "runtime/handshake/secret.hpp"'),
        ("runtime/handshake/listener.hpp", '#include "comm/engine.hpp"'),
        ("axon/runtime.cpp", '#include "runtime/runtime.hpp"'),
        ("c10d/backend.hpp", "#include <torch/csrc/distributed/c10d/Backend.hpp>"),
        ("transport/ucx/worker.hpp", "#include <ucp/api/ucp.h>"),
        ("base/config.cpp", "const char* value = std::getenv(name);"),
        ("base/log.hpp", "// never calls getenv()"),
        ("device/copy.cu", '#include "device/copy.cuh"'),
        ("device/copy.cuh", '#include "cuda/device_types.hpp"'),
    ],
)
def test_allowed_line_passes(file: str, line: str) -> None:
    assert check_layers.check_line(file, line) is None


def test_breaches_name_file_and_line(tmp_path: Path) -> None:
    source = tmp_path / "base" / "gate.hpp"
    source.parent.mkdir()
    source.write_text('#pragma once\n#include "comm/engine.hpp"\n')
    assert list(check_layers.breaches(tmp_path)) == [f'{source}:2: base may not include "comm/engine.hpp"']
