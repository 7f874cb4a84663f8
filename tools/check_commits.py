"""Commit subjects: `area: imperative`, at most 72 characters.

    python tools/check_commits.py [COMMIT | RANGE] [--message FILE]

Without arguments, the commits since `FIRST` are checked. A shallow clone that lacks `FIRST` is checked as far back as
it reaches, by the authors' dates. `--message FILE` checks one message before it is committed, for a `commit-msg` hook:

    printf '#!/bin/sh\nexec python3 tools/check_commits.py --message "$1"\n' > .git/hooks/commit-msg
    chmod +x .git/hooks/commit-msg
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FIRST = "16889d97360c12923b88957a127f0237bdc1a134"  # the last commit before this rule was checked
FIRST_DATE = 1795716571  # when it was written, in seconds since 1970
MAX_LENGTH = 72

_EXEMPT = re.compile(r"(Merge|Revert|fixup!|squash!|amend!)\b")
_SUBJECT = re.compile(r"(?P<areas>[a-z0-9_./-]+(, [a-z0-9_./-]+)*): (?P<text>\S.*)")
# Beginnings of earlier subjects that were not imperatives. English has no rule for verbs, so reviews find the rest.
_NO_VERB = re.compile(
    r"(a|an|the|this|that|these|those|who|whoever|whose|what|which|when|where|how|of|more|most|one|no|not|all|each|every"
    r"|some|other|in|on|at|for|from|with|without|after|before|between|by|two|three|four|its|their|our|\d\S*)",
    re.IGNORECASE,
)
_OTHER_FORM = re.compile(r"\w{3,}ing|(add|fix|remov|renam|mov|us|chang|updat|mak|let|describ|document)e?(s|d|ed)")
_VERBS_IN_ING = {"bring", "fling", "ping", "ring", "spring", "string", "swing"}


def problem(subject: str) -> str | None:
    """Returns what is wrong with `subject`, or None."""
    if _EXEMPT.match(subject):
        return None
    if len(subject) > MAX_LENGTH:
        return f"{len(subject)} characters; at most {MAX_LENGTH} are allowed, details go into the body"
    match = _SUBJECT.fullmatch(subject)
    if match is None:
        return "no `area: imperative`; name the folder or topic in lower case before a colon and a space"
    first = match["text"].split()[0].rstrip(",;:")
    other_form = _OTHER_FORM.fullmatch(first.lower()) and first.lower() not in _VERBS_IN_ING
    if _NO_VERB.fullmatch(first) or other_form or not first[0].isalpha():
        return f"{first!r} after the area is not an imperative; begin with a verb, such as add, fix or describe"
    if match["text"].endswith("."):
        return "ends with a full stop"
    return None


def problems(subjects: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Yields a line for each of the (commit, subject) pairs that breaks a rule."""
    for commit, subject in subjects:
        if found := problem(subject):
            yield f"{commit}: {subject!r}: {found}"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)


def commits(revisions: list[str]) -> Iterator[tuple[str, str]]:
    """Yields (commit, subject) of `revisions`, or of the commits since `FIRST` if there are none."""
    oldest = 0
    if not revisions:
        known = _git("cat-file", "-e", f"{FIRST}^{{commit}}").returncode == 0
        revisions, oldest = [f"{FIRST}..HEAD" if known else "HEAD"], FIRST_DATE + 1
    done = _git("log", "--no-merges", "--format=%h %at %s", *revisions)
    if done.returncode != 0:
        sys.exit(f"check_commits.py: git log {' '.join(revisions)}: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        commit, written, subject = line.split(" ", 2)
        if int(written) >= oldest:
            yield commit, subject


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks commit subjects.")
    parser.add_argument("revisions", nargs="?", help=f"commits to check; those since {FIRST[:7]} by default")
    parser.add_argument("--message", type=Path, help="check this file's first line instead")
    arguments = parser.parse_args()
    if arguments.message:
        lines = arguments.message.read_text(encoding="utf-8").splitlines()
        checked = iter([("message", lines[0] if lines else "")])
    elif _git("rev-parse", "--git-dir").returncode != 0:
        return 0  # an archive of the sources has no history
    else:
        checked = commits([arguments.revisions] if arguments.revisions else [])
    found = list(problems(checked))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
