"""torch_axon.runtime with an initiator that asks again and again, and never sleeps."""

from __future__ import annotations

from sides.axon import Initiator as SleepingInitiator
from sides.axon import Owner
from torch_axon.runtime import Transfer

__all__ = ["Initiator", "Owner"]


class Initiator(SleepingInitiator):
    def finish(self, transfer: Transfer) -> None:
        while not transfer.done():
            pass
        transfer.result()

    def await_notification(self) -> None:
        while not self.runtime.notifications():
            pass
