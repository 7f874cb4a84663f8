"""`nixl`, as torch_axon provides it. See torch_axon.nixl."""

import sys

from torch_axon.nixl import fill

fill(sys.modules[__name__])
