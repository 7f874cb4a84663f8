from pathlib import Path

import check_host
import pytest


@pytest.fixture(autouse=True)
def command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["check_host.py"])


def test_missing_packages_are_named_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit, match=r"libgtest-dev, iproute2.*sudo apt-get install .* libgtest-dev iproute2"):
        check_host.install(["libgtest-dev", "iproute2"])


def test_only_tests_need_google_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.exists", lambda path: "gtest" not in path)
    assert "libgtest-dev" in check_host.missing_packages(for_tests=True)
    assert "libgtest-dev" not in check_host.missing_packages(for_tests=False)


def test_only_fuzzing_needs_clang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    assert "clang" in check_host.missing_packages(for_tests=False, for_fuzzing=True)
    assert "clang" not in check_host.missing_packages(for_tests=True)


def test_old_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_host, "gxx_version", lambda: 10)
    monkeypatch.setattr(check_host, "missing_packages", lambda *_: [])
    with pytest.raises(SystemExit, match=r"g\+\+ 11 or newer is needed"):
        check_host.main()


def test_old_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.version_info", (3, 9, 18))
    with pytest.raises(SystemExit, match=r"Python 3\.10 or newer is needed.* is 3\.9"):
        check_host.main()


def test_environment_of_another_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.2.1\n")
    with pytest.raises(SystemExit, match=r"was made with Python 3\.2, not 3\."):
        check_host.check_environment(str(tmp_path))
