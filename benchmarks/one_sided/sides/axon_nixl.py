"""torch_axon.nixl: NIXL's program with this module."""

from __future__ import annotations

from sides import nixl

MODULE = "torch_axon.nixl"


class Owner(nixl.Owner):
    module = MODULE


class Initiator(nixl.Initiator):
    module = MODULE
