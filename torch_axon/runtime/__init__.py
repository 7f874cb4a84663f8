"""Active messages: register functions, invoke them in other processes with tensors, and await the answers.

    from torch_axon.runtime import Runtime

    with Runtime("server") as runtime:                    # one process
        @runtime.register("scale")
        def scale(tensor, factor):
            return tensor * factor

        address = runtime.address                         # bytes; a process that has them can connect
        ...

    with Runtime("client") as runtime:                    # another one
        server = runtime.connect(address)                 # or "host:port", see Runtime.listen
        print(server.invoke("scale", torch.ones(3), 2.0).result())      # or: await server.invoke(…)

See docs/runtime.md.
"""

from torch_axon.runtime._current import CurrentCall as CurrentCall
from torch_axon.runtime._current import current_call as current_call
from torch_axon.runtime._errors import AccessDenied as AccessDenied
from torch_axon.runtime._errors import PeerLostError as PeerLostError
from torch_axon.runtime._errors import RemoteError as RemoteError
from torch_axon.runtime._errors import RuntimeClosedError as RuntimeClosedError
from torch_axon.runtime._errors import UnknownHostError as UnknownHostError
from torch_axon.runtime._errors import VersionMismatchError as VersionMismatchError
from torch_axon.runtime._errors import WrongSecretError as WrongSecretError
from torch_axon.runtime._future import Future as Future
from torch_axon.runtime._generators import Answers as Answers
from torch_axon.runtime._mailboxes import Mailbox as Mailbox
from torch_axon.runtime._memory import Coming as Coming
from torch_axon.runtime._memory import Incoming as Incoming
from torch_axon.runtime._memory import Memory as Memory
from torch_axon.runtime._one_sided import Region as Region
from torch_axon.runtime._one_sided import Remote as Remote
from torch_axon.runtime._one_sided import Transfer as Transfer
from torch_axon.runtime._one_sided import TransferStats as TransferStats
from torch_axon.runtime._peer import Options as Options
from torch_axon.runtime._peer import Peer as Peer
from torch_axon.runtime._peer import publish as publish
from torch_axon.runtime._peer_callbacks import CallbackHandle as CallbackHandle
from torch_axon.runtime._plans import Blocks as Blocks
from torch_axon.runtime._plans import BlockTable as BlockTable
from torch_axon.runtime._plans import Plan as Plan
from torch_axon.runtime._pool import Pool as Pool
from torch_axon.runtime._runtime import Runtime as Runtime

__all__ = [
    "AccessDenied",
    "Answers",
    "BlockTable",
    "Blocks",
    "CallbackHandle",
    "Coming",
    "CurrentCall",
    "Future",
    "Incoming",
    "Mailbox",
    "Memory",
    "Options",
    "Peer",
    "PeerLostError",
    "Plan",
    "Pool",
    "Region",
    "Remote",
    "RemoteError",
    "Runtime",
    "RuntimeClosedError",
    "Transfer",
    "TransferStats",
    "UnknownHostError",
    "VersionMismatchError",
    "WrongSecretError",
    "current_call",
    "publish",
]
