"""The module `nixl`: how programs get it, what it contains, and that an installed one stays untouched."""

from __future__ import annotations

import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from nixl_support import numbered, register, run

from support.processes import environment
from torch_axon.nixl import _api, _bindings, _utils, path

LIMIT_S = 120.0  # for a process that imports torch, on a machine that does other work

STATUSES = {
    "nixlNotPostedError": "NIXL_ERR_NOT_POSTED",
    "nixlInvalidParamError": "NIXL_ERR_INVALID_PARAM",
    "nixlBackendError": "NIXL_ERR_BACKEND",
    "nixlNotFoundError": "NIXL_ERR_NOT_FOUND",
    "nixlMismatchError": "NIXL_ERR_MISMATCH",
    "nixlNotAllowedError": "NIXL_ERR_NOT_ALLOWED",
    "nixlRepostActiveError": "NIXL_ERR_REPOST_ACTIVE",
    "nixlUnknownError": "NIXL_ERR_UNKNOWN",
    "nixlNotSupportedError": "NIXL_ERR_NOT_SUPPORTED",
    "nixlRemoteDisconnectError": "NIXL_ERR_REMOTE_DISCONNECT",
    "nixlCancelledError": "NIXL_ERR_CANCELED",
    "nixlNoTelemetryError": "NIXL_ERR_NO_TELEMETRY",
}
ENUMS = {
    "nixl_mem_t": {"DRAM_SEG": 0, "VRAM_SEG": 1, "BLK_SEG": 2, "OBJ_SEG": 3, "FILE_SEG": 4},
    "nixl_xfer_op_t": {"NIXL_READ": 0, "NIXL_WRITE": 1},
    "nixl_status_t": {
        "NIXL_IN_PROG": 1,
        "NIXL_SUCCESS": 0,
        "NIXL_ERR_NOT_POSTED": -1,
        "NIXL_ERR_INVALID_PARAM": -2,
        "NIXL_ERR_BACKEND": -3,
        "NIXL_ERR_NOT_FOUND": -4,
        "NIXL_ERR_MISMATCH": -5,
        "NIXL_ERR_NOT_ALLOWED": -6,
        "NIXL_ERR_REPOST_ACTIVE": -7,
        "NIXL_ERR_UNKNOWN": -8,
        "NIXL_ERR_NOT_SUPPORTED": -9,
    },
    "nixl_cost_t": {"NIXL_COST_ANALYTICAL_BACKEND": 0},
    "nixl_thread_sync_t": {
        "NIXL_THREAD_SYNC_NONE": 0,
        "NIXL_THREAD_SYNC_STRICT": 1,
        "NIXL_THREAD_SYNC_RW": 2,
        "NIXL_THREAD_SYNC_DEFAULT": 0,
    },
}


@pytest.mark.parametrize("name", ENUMS)
def test_enumerations_have_the_names_and_values_of_nixl(name: str) -> None:
    kind = getattr(_bindings, name)
    assert {member: each.value for member, each in kind.__members__.items()} == ENUMS[name]
    for member, value in ENUMS[name].items():
        each = getattr(_bindings, member)
        assert each is kind[member]
        assert str(each).startswith(f"{name}.")
        assert repr(each).startswith(f"<{name}.")
        assert len({each, kind(value)}) == 1
        assert (each == value) == (name in ("nixl_mem_t", "nixl_status_t", "nixl_xfer_op_t"))


def test_the_settings_for_threads_have_the_values_of_the_bindings() -> None:
    for name in ENUMS["nixl_thread_sync_t"]:
        assert _api.nixl_thread_sync_t[name].value is getattr(_bindings, name)
    assert len(_api.nixl_thread_sync_t) == 3


def test_constants_have_the_values_of_nixl() -> None:
    assert _bindings.DEFAULT_COMM_PORT == _api.DEFAULT_COMM_PORT == 8888
    assert _bindings.NIXL_INIT_AGENT == ""
    assert _bindings.HAVE_UCX_GPU_DEVICE_API is False
    assert vars(_api)["nixlBind"] is _bindings
    config = _bindings.nixlAgentConfig()
    assert (config.useProgThread, config.useListenThread, config.listenPort) == (False, False, 8888)
    assert (config.captureTelemetry, config.syncMode) == (False, _bindings.NIXL_THREAD_SYNC_NONE)
    zeros = _bindings.nixlXferTelemetry()
    assert (zeros.startTime, zeros.postDuration, zeros.xferDuration, zeros.totalBytes, zeros.descCount) == (0,) * 5


@pytest.mark.parametrize(("name", "status"), STATUSES.items())
def test_exceptions_have_the_names_of_nixl_and_begin_with_their_status(name: str, status: str) -> None:
    kind = getattr(_bindings, name)
    assert kind.__name__ == name
    assert issubclass(kind, Exception)
    assert not issubclass(kind, RuntimeError)
    assert str(kind()) == status
    assert str(kind("the reason")) == f"{status}: the reason"
    others = [getattr(_bindings, other) for other in STATUSES if other != name]
    assert not any(issubclass(kind, other) for other in others)


def test_an_agent_is_made_by_the_class_that_the_bindings_have_then(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = _bindings.nixlAgent

    def spy(name: str, config: _bindings.nixlAgentConfig) -> _bindings.nixlAgent:
        made.append((name, config.syncMode, config.useListenThread, config.captureTelemetry))
        return real(name, config)

    monkeypatch.setattr(_bindings, "nixlAgent", spy)
    modes = _api.nixl_thread_sync_t
    for mode in modes:
        _api.nixl_agent("spied", _api.nixl_agent_config(sync_mode=mode, capture_telemetry=True))
        assert made.pop() == ("spied", mode.value, False, True)
    _api.nixl_agent("spied")
    assert made.pop()[1] == _bindings.NIXL_THREAD_SYNC_NONE
    _api.nixl_agent("spied", _api.nixl_agent_config(True, True, 0))
    assert made.pop()[1:3] == (_bindings.NIXL_THREAD_SYNC_STRICT, True)


def test_helpers_of_examples_allocate_fill_and_compare(make_agent: Callable[..., _api.nixl_agent]) -> None:
    addresses = [_utils.malloc_passthru(1000) for _ in range(2)]
    assert all(address % 4096 == 0 for address in addresses)
    agent = make_agent("agent")
    descs = agent.register_memory([(address, 1000, 0, "") for address in addresses], "DRAM")
    _utils.ba_buf(addresses[0], 1000)
    with pytest.raises(AssertionError):
        _utils.verify_transfer(addresses[0], addresses[1], 1000)
    local, remote = (agent.get_xfer_descs([(address, 1000, 0)], "DRAM") for address in reversed(addresses))
    assert local is not None
    assert remote is not None
    handle = agent.initialize_xfer("READ", local, remote, "agent")
    run(agent, handle)
    _utils.verify_transfer(addresses[0], addresses[1], 1000)
    agent.deregister_memory(descs)
    for address in addresses:
        _utils.free_passthru(address)
    register(agent, numbered(8))


# ---- How programs get the module


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A folder with a package `nixl` of another origin."""
    package = tmp_path / "others" / "nixl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("ORIGIN = 'another package'\n")
    return package.parent


def _run(command: list[str], folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    variables = environment()
    variables["PYTHONPATH"] = ":".join([*map(str, paths), variables["PYTHONPATH"]])
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=variables, cwd=folder
    )


def _output_of(command: list[str], folder: Path, *paths: Path) -> list[str]:
    done = _run(command, folder, *paths)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_an_installed_nixl_stays_untouched_without_install(stub: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import torch_axon.nixl
            import nixl
            assert nixl.ORIGIN == "another package", nixl
            assert not hasattr(nixl, "nixl_agent")
            try:
                torch_axon.nixl.install()
            except RuntimeError as error:
                print(error)
            import sys
            assert sys.modules["nixl"] is nixl and "nixl._api" not in sys.modules
        """)
    )
    (line,) = _output_of([sys.executable, str(program)], tmp_path, stub)
    assert "nixl was imported already" in line
    assert str(stub) in line
    assert "\n" not in line
    assert "ORIGIN" in (stub / "nixl" / "__init__.py").read_text()


def test_install_gives_a_process_and_its_children_this_module(stub: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import importlib.util, multiprocessing, sys

            def origin_in_a_child(pipe):
                pipe.send(importlib.util.find_spec("nixl").origin)

            if __name__ == "__main__":
                import torch_axon.nixl
                before = importlib.util.find_spec("nixl").origin
                for _ in range(2):
                    torch_axon.nixl.install()
                import nixl, nixl._api, nixl._bindings, nixl._utils
                import nixl._api as nixl_api
                from nixl import nixl_agent, nixlXferDList, nixlNotFoundError, DRAM_SEG, malloc_passthru
                from nixl._api import nixl_agent as same, nixl_agent_config, nixl_thread_sync_t, nixlBind
                from nixl._bindings import nixlXferTelemetry
                from nixl.logging import get_logger
                assert nixl_agent is same is torch_axon.nixl.nixl_agent is nixl_api.nixl_agent
                assert nixlBind is nixl._bindings is sys.modules["torch_axon.nixl._bindings"]
                assert nixl.DEFAULT_COMM_PORT == 8888
                assert get_logger("package._module").name == "nixl.module"
                spec = importlib.util.find_spec("nixl")
                assert spec is not None and importlib.util.find_spec("nixl._api") is not None
                nixl._bindings.nixlAgent = lambda name, config: 1 / 0
                try:
                    nixl_agent("agent")
                except ZeroDivisionError:
                    print("the replaced class was called")
                context = multiprocessing.get_context("spawn")
                pipe, there = context.Pipe()
                child = context.Process(target=origin_in_a_child, args=(there,))
                child.start()
                assert pipe.poll(100)
                print(before, spec.origin, pipe.recv(), sep="\\n")
                child.join(100)
        """)
    )
    called, before, after, in_child = _output_of([sys.executable, str(program)], tmp_path, stub)
    ours = str(path() / "nixl" / "__init__.py")
    assert called == "the replaced class was called"
    assert (before, after, in_child) == (str(stub / "nixl" / "__init__.py"), ours, ours)


ORIGIN = "import importlib.util, sys; print(importlib.util.find_spec('nixl').origin, *sys.argv[1:])"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a Python file, a module of the same text, and a program."""
    text = f"""
        import subprocess, sys
        print("started", flush=True)
        subprocess.run([sys.executable, "-c", {ORIGIN!r}, *sys.argv[1:]], check=True)
        {ORIGIN}
    """
    for name in ("a_file.py", "a_module.py"):
        (tmp_path / name).write_text(textwrap.dedent(text))
    program = tmp_path / "a_program"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" a_file.py "$@"\n')
    program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "has_child"),
    [
        (["a_file.py"], True),
        (["-m", "a_module"], True),
        (["-c", ORIGIN], False),
        (["./a_program"], True),
    ],
    ids=["file", "module", "code", "program"],
)
def test_programs_and_their_children_run_with_this_module(
    programs: Path, stub: Path, command: list[str], has_child: bool
) -> None:
    starter = [sys.executable, "-m", "torch_axon.nixl"]
    lines = _output_of([*starter, *command, "--port", "8000"], programs, stub)
    origin = f"{path() / 'nixl' / '__init__.py'} --port 8000"
    assert lines == (["started", origin, origin] if has_child else [origin])


def test_the_status_of_a_program_is_passed_on(programs: Path) -> None:
    done = _run([sys.executable, "-m", "torch_axon.nixl", "-c", "raise SystemExit(7)"], programs)
    assert (done.returncode, done.stdout) == (7, "")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [([], 2, "python -m torch_axon.nixl server.py"), (["no-such-program"], 127, "no-such-program cannot be run")],
)
def test_what_cannot_be_run_is_refused_with_a_status(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    text: str,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "the tests")  # is restored
    monkeypatch.setattr(sys, "argv", ["torch_axon.nixl", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("torch_axon.nixl", run_name="__main__")
    assert ended.value.code == status
    assert text in capsys.readouterr().err
