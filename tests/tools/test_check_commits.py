"""Tests which commit subjects tools/check_commits.py refuses, and which commits it checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import check_commits
import pytest

TOOL = Path(check_commits.__file__)
BEFORE, AFTER = check_commits.FIRST_DATE - 60, check_commits.FIRST_DATE + 60


@pytest.mark.parametrize(
    "subject",
    [
        "engine: charge only sleep time to the spin budget when yielding",
        "base, c10d: say in plain words what two comments mean",
        "tests/fault: let rounds end early",
        "ring: string messages together",
        "docs: " + "x" * 66,
        "Merge branch 'a long name that nobody could have shortened' into another one with a long name",
        'Revert "engine: charge only sleep time to the spin budget when yielding, as before"',
    ],
)
def test_subject_passes(subject: str) -> None:
    assert check_commits.problem(subject) is None


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("docs: " + "x" * 67, "73 characters; at most 72"),
        ("Fix the build", "no `area: imperative`"),
        ("Docs: fix a link", "no `area: imperative`"),
        ("docs:fix a link", "no `area: imperative`"),
        ("", "no `area: imperative`"),
        ("comm: who makes way for a crowd keeps what is left", "'who' after the area is not an imperative"),
        ("tests: a forked child leaves messages alone", "'a' after the area is not an imperative"),
        ("docs: fixed a link", "'fixed' after the area is not an imperative"),
        ("docs: renames a page", "'renames' after the area is not an imperative"),
        ("docs: wording of a page", "'wording' after the area is not an imperative"),
        ("docs: fix a link.", "ends with a full stop"),
    ],
)
def test_subject_is_refused(subject: str, problem: str) -> None:
    assert problem in (check_commits.problem(subject) or "")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    git(tmp_path, "init", "-q")
    return tmp_path


def git(repository: Path, *arguments: str, date: int = AFTER) -> None:
    environment = {**os.environ, "GIT_AUTHOR_DATE": f"{date} +0000", "GIT_COMMITTER_DATE": f"{AFTER} +0000"}
    identity = ["-c", "user.name=name", "-c", "user.email=name@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=repository, env=environment, check=True)


def commit(repository: Path, subject: str, date: int) -> None:
    git(repository, "commit", "-q", "--allow-empty", "-m", subject, date=date)


def check(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


def test_only_commits_after_the_first_one_are_checked(repository: Path) -> None:
    commit(repository, "What was said before the rule", BEFORE)
    commit(repository, "docs: describe the rule", AFTER)
    assert check(repository).returncode == 0


def test_planted_subject_fails_also_in_a_shallow_clone(repository: Path, tmp_path: Path) -> None:
    commit(repository, "docs: describe the rule", AFTER)
    commit(repository, "docs: what the rule says", AFTER)
    commit(repository, "docs: describe it better", AFTER)
    shallow = tmp_path / "shallow"
    git(repository, "clone", "-q", "--depth", "2", f"file://{repository}", str(shallow))
    for clone in (repository, shallow):
        done = check(clone)
        assert done.returncode == 1
        assert "'docs: what the rule says': 'what' after the area is not an imperative" in done.stdout
        assert len(done.stdout.splitlines()) == 1


def test_archive_without_history_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert check(tmp_path).returncode == 0


def test_hook_checks_the_message_alone(repository: Path) -> None:
    message = repository / "message"
    message.write_text("docs: describe the rule\n\nWhat the body says is free.\n")
    assert check(repository, "--message", str(message)).returncode == 0
    message.write_text("the rule\n")
    assert check(repository, "--message", str(message)).returncode == 1


def test_unknown_revisions_are_named(repository: Path) -> None:
    commit(repository, "docs: describe the rule", AFTER)
    assert "absent..HEAD" in check(repository, "absent..HEAD").stderr
