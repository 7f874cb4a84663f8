"""The logger of NIXL's name, which its examples use."""

from __future__ import annotations

import logging
import os
import sys

_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_FORMAT = "%(asctime)s NIXL %(levelname)s %(filename)s:%(lineno)d %(message)s"


def setup_logging() -> None:
    """Prepares the logger `nixl`, as the first `get_logger` does."""
    get_logger("nixl")


def get_logger(name: str) -> logging.Logger:
    """Returns a logger below `nixl`, which prints to stdout from the level of `NIXL_LOG_LEVEL` on, by default INFO.

    Args:
        name: the name of a module
    """
    root = logging.getLogger("nixl")
    if not root.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)
        root.propagate = False
        root.setLevel(_LEVELS.get(os.environ.get("NIXL_LOG_LEVEL", ""), logging.INFO))
    return logging.getLogger(f"nixl.{name.rpartition('.')[2].lstrip('_')}")
