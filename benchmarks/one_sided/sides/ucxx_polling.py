"""UCXX with an event loop that drives the transport itself, without pause."""

import os

os.environ["UCXPY_PROGRESS_MODE"] = "polling"

from sides.ucxx import Initiator, Owner

__all__ = ["Initiator", "Owner"]
