"""Sizes in bytes as nccl-tests writes them: ``8``, ``4K``, ``1.5M``, ``1G``, and ranges of them."""

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)B?", re.IGNORECASE)
_STEP = re.compile(r"x(\d+(?:\.\d+)?)|\+(.+)")
_MAX_SIZES = 1000


def parse_size(text: str) -> int:
    """Returns the bytes that a text stands for; units are powers of 1024.

    Raises:
        ValueError: the text is not a size
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write a number and K, M, G or nothing, such as 8, 32K or 1.5M")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def format_size(num_bytes: int) -> str:
    """Returns the shortest exact spelling: 1024 → ``1K``, 1000 → ``1000``."""
    for unit in ("G", "M", "K"):
        if num_bytes and num_bytes % _UNITS[unit] == 0:
            return f"{num_bytes // _UNITS[unit]}{unit}"
    return str(num_bytes)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Returns the sizes of a comma-separated list of sizes and of ranges ``BEGIN:END`` with ``:xFACTOR`` or ``:+STEP``.

    Raises:
        ValueError: the text is not such a list
    """
    sizes: list[int] = []
    for item in text.split(","):
        sizes.extend(_parse_range(item))
    return tuple(dict.fromkeys(sizes))


def size_range(begin: int, end: int, step: str = "x2") -> tuple[int, ...]:
    """Returns the sizes from `begin` to `end` inclusive; `step` is ``xFACTOR`` (above 1) or ``+BYTES``.

    Raises:
        ValueError: the range or the step is not allowed, or there are more than 1,000 sizes
    """
    if not 0 < begin <= end:
        raise ValueError(f"a range goes upwards from at least 1 byte, not from {begin} to {end}")
    match = _STEP.fullmatch(step)
    if match is None:
        raise ValueError(f"{step!r} is not a step; write xFACTOR or +BYTES, such as x2 or +1K")
    factor = float(match[1] or 1)
    increment = parse_size(match[2]) if match[2] else 0
    if factor <= 1 and increment == 0:
        raise ValueError(f"the step {step!r} never reaches the end; the factor must be above 1, the increment above 0")
    sizes: list[int] = []
    size = begin
    while size <= end:
        sizes.append(size)
        if len(sizes) > _MAX_SIZES:
            raise ValueError(f"{begin}:{end}:{step} has more than {_MAX_SIZES} sizes; take a larger step")
        size = size + increment if increment else max(size + 1, int(size * factor))
    return tuple(sizes)


def _parse_range(text: str) -> tuple[int, ...]:
    parts = text.split(":")
    if len(parts) == 1:
        return (parse_size(text),)
    if len(parts) > 3:
        raise ValueError(f"{text!r} is not a range; write BEGIN:END:xFACTOR or BEGIN:END:+STEP")
    return size_range(parse_size(parts[0]), parse_size(parts[1]), parts[2] if len(parts) == 3 else "x2")
