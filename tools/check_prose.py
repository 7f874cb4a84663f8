"""Refuses prose that reads as translated, and words that only this project used: in comments, docstrings, docs, texts.

`PATTERNS` are phrases that a reader stumbles over. `OLD_WORDS` are names that have been replaced by the field's terms.
`IDENTIFIERS` are words of both in names of C++ and Python code, and of files. Each entry says what to write instead.
In comments, docstrings and docs, a sentence has at most `MAX_WORDS` words.

    python tools/check_prose.py [PATH…]        # files or folders; by default all that git tracks

Prints every hit as file:line and exits 1 if there is one. CHANGELOG.md and docs/adr/ may name what has been replaced.
"""

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sentences import CPP, PYTHON, STRING, TEXT, blocks_of, has_hash_comments, sentences, split_cpp

MAX_WORDS = 30  # of a sentence
EXEMPT = (
    "CHANGELOG.md",
    "docs/adr/",
    "benchmarks/results/",
    "tools/check_",
    "tests/tools/test_check_",
)


class Rule(NamedTuple):
    pattern: re.Pattern[str]
    advice: str


def rules(table: dict[str, str]) -> list[Rule]:
    return [Rule(re.compile(pattern), advice) for pattern, advice in table.items()]


PATTERNS = rules(
    {
        r"^\s*Of [a-z](?!ourse)[^.]*\.$": "a complete sentence with a subject and a verb",
        r"\bbehind\b(?! (a|the) (firewall|proxy|router))": "after, following, below or under, as is meant",
        r"\b([Ww]hoever|[Nn]obody|[Ss]omebody)\b": "name the thread, rank or process",
        r"(?<!users )(?<!user )(?<!readers )(?<!people )(?<!engineers )(?<!anyone )\b[Ww]ho\b": (
            "that, for a thread, rank or process"
        ),
        r"\b(has|have|had) come\b(?! with)": "has arrived",
        r"\b(as many|as long) as may\b|\bfor people\b": "what is allowed, and for whom",
        r"\b(one|\d[\d,.]*( [a-z]+)?|[uµm]s|[KMG]iB|GB/s) an? "
        r"(rank|peer|process|block|group|call|message|byte|bit|second|GPU)\b": "per",
        r"(?<!there )\bis none\b|\b(which|that) is no\b": "say what it is",
        r"\b(amid|in vain|likewise|by and by|so many)\b": "a plainer word",
    }
)

# Of comments in C++ alone: in Python's docstrings "Whether …" describes an attribute or a result.
QUESTIONS = rules(
    {r"^(Whether|Whose|Which|Where|Who)\b.*\.$": "Returns whether …, or a statement in place of a question"}
)

OLD_WORDS = rules(
    {
        r"\b(Peer|Device|Own)Card\b": "PeerAddress, DeviceAddress, OwnAddress",
        r"\b(BellPull|BellPage|RingLine|BlockPool|FoldKernels|FoldType)\b": (
            "WakeUpPipe, DoorbellPage, RingEntry, SizeClassPool, ReduceKernels, ReduceType"
        ),
        r"\b(TeamMailbox|SegmentPlace|LentPlace)\b": "TeamControl, IpcLocation, ExposedLocation",
        r"\b(Shelf|Companion|Letter|Whereabouts)\b": "InFlightWorks, DeviceHook, ControlMessage, MemoryHandle",
        r"\b[Mm]ends\b": "compatibility patches",
        r"\b(deaf|deafness|farewell|last words)\b": "wedged receive queue, drain on peer death",
        r"\b(crowded?|thins? out)\b": "oversubscribed, back off",
        r"\bstands (in|by) for\b": "follower, idle",
        r"\bbell pull\b": "wake-up pipe",
        r"\bdevice cards?\b|\bpeer cards?\b": "device address, peer address",
        r"\bloans?\b|\blends?\b|\blent\b|\bborrows?\b": "zero-copy get: expose, read, acknowledge",
        r"\bshelf\b|\bcompanion\b": "works in flight, device hook",
        r"\bsegment boards?\b": "export table",
        r"\benvelopes?\b": "header frame",
    }
)

# Applied to the words of a name, in lower case and joined by underscores: "k_last_words" for `kLastWords`.
IDENTIFIERS = rules(
    {
        rf"(?:^|_)(?:{words})(?=_|$)": advice
        for words, advice in {
            r"nobodys?|somebody|whoever": "no rank, no peer, no thread or no waiter, as is meant",
            r"who_(?:comes?|has|is|may|refuses|serves|sleeps|waits)": "the rank, peer, thread or waiter that …",
            r"behind": "after, later, below or past, as is meant",
            r"(?:has|have|had|num|expect)_(?:come|came)": "has arrived, is received",
            r"announcements?": "descriptor, RTS or request",
            r"keepers?": "IPC cache thread, or what holds a reference",
            r"(?:peer|device|own)_cards?": "peer address, device address",
            r"boards?": "export table",
            r"envelopes?": "header frame",
            r"(?:write|set|take|wait_for)_words?": "flag",
            r"last_words|farewells?|deaf|crowds?|crowded": "drain on peer death, wedged receive queue, oversubscribed",
            r"bell_(?:pull|page)|ring_line|block_pool": "wake-up pipe, doorbell page, ring entry, size-class pool",
            r"fold_(?:kernels?|types?|next|partial|stored|operand)": "reduce",
            r"loans?|lends?|lenders?|lending|lent": "zero-copy get: expose, read, acknowledge",
            r"shelf|companions?|letter|whereabouts|mends": "works in flight, device hook, control message",
        }.items()
    }
)


def is_text(literal: str) -> bool:
    """Whether a string literal is prose: not a name, a path or an option."""
    return len(literal.split()) >= 3


def words_of(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|\W", "_", name).lower()


def identifiers_of_cpp(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.lstrip().startswith("#include"):
            code, _ = split_cpp(line)
            yield from ((number, name) for name in re.findall(r"[A-Za-z_]\w*", STRING.sub('""', code)))


def identifiers_of_python(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def identifiers_of(path: Path) -> Iterator[tuple[int, str]]:
    """The names in a file's code, line by line, after those of the file and its folders, which count as line 1."""
    yield from ((1, part) for part in path.parts)
    if path.suffix in CPP:
        yield from identifiers_of_cpp(path.read_text(errors="replace"))
    elif path.suffix in PYTHON:
        yield from identifiers_of_python(path.read_text(errors="replace"))


def prose_of_cpp(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        code, comment = split_cpp(line)
        if comment:
            yield number, comment.lstrip("/").strip()
        if not line.lstrip().startswith("#include"):
            yield from ((number, text) for text in STRING.findall(code) if is_text(text))


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
        elif token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)):
            if not is_text(token.string):
                continue
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line.strip(" \"'")


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """The prose of a file, line by line: comments and texts of code, all of a page but its code blocks."""
    text = path.read_text(errors="replace")
    if path.suffix in CPP:
        yield from prose_of_cpp(text)
    elif path.suffix in PYTHON:
        yield from prose_of_python(text)
    elif path.suffix in TEXT:
        is_code = False
        for number, line in enumerate(text.splitlines(), start=1):
            if line.lstrip().startswith("```"):
                is_code = not is_code
            elif not is_code and not line.startswith("    "):
                yield number, re.sub(r"`[^`]*`", "``", line)
    elif has_hash_comments(path):
        for number, line in enumerate(text.splitlines(), start=1):
            if found := re.search(r"(?:^|\s)#\s?(.*)$", line):
                yield number, found[1]


def problems(path: Path) -> Iterator[str]:
    for number, line in prose_of(path):
        for rule in (*PATTERNS, *OLD_WORDS, *(QUESTIONS if path.suffix in CPP else ())):
            if found := rule.pattern.search(line):
                yield f"{path}:{number}: '{found[0].strip()}': write {rule.advice}"
    for number, name in identifiers_of(path):
        for rule in IDENTIFIERS:
            if rule.pattern.search(words_of(name)):
                yield f"{path}:{number}: '{name}': write {rule.advice}"
    yield from long_sentences(path)


def long_sentences(path: Path) -> Iterator[str]:
    for block in blocks_of(path):
        for line, text, num_words in sentences(block):
            if num_words > MAX_WORDS:
                start = " ".join(text.split()[:6])
                yield f"{path}:{line}: '{start} …' has {num_words} words: write sentences of at most {MAX_WORDS}"


def tracked(paths: list[str]) -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *paths], check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    for name in filter(None, listed.split("\0")):
        if not name.startswith(EXEMPT) and Path(name).is_file():
            yield Path(name)


def main() -> int:
    found = [problem for path in tracked(sys.argv[1:]) for problem in problems(path)]
    print("\n".join(found) if found else "prose: plain")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
