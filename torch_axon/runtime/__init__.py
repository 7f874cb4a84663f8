"""Active messages: register functions, invoke them with tensors at other processes, await their answers.

    from torch_axon.runtime import Runtime

    with Runtime("server") as runtime:                    # one process
        @runtime.register("scale")
        def scale(tensor, factor):
            return tensor * factor

        publish(runtime.address)                          # bytes, which allow to connect
        ...

    with Runtime("client") as runtime:                    # another one
        server = runtime.connect(address)
        print(server.invoke("scale", torch.ones(3), 2.0).result())      # or: await server.invoke(…)

See docs/runtime.md.
"""

from torch_axon.runtime._errors import PeerLostError as PeerLostError
from torch_axon.runtime._errors import RemoteError as RemoteError
from torch_axon.runtime._errors import RuntimeClosedError as RuntimeClosedError
from torch_axon.runtime._future import Future as Future
from torch_axon.runtime._generators import Answers as Answers
from torch_axon.runtime._mailboxes import Mailbox as Mailbox
from torch_axon.runtime._memory import Incoming as Incoming
from torch_axon.runtime._memory import Memory as Memory
from torch_axon.runtime._peer import Peer as Peer
from torch_axon.runtime._peer import publish as publish
from torch_axon.runtime._pool import Pool as Pool
from torch_axon.runtime._runtime import Runtime as Runtime

__all__ = [
    "Answers",
    "Future",
    "Incoming",
    "Mailbox",
    "Memory",
    "Peer",
    "PeerLostError",
    "Pool",
    "RemoteError",
    "Runtime",
    "RuntimeClosedError",
    "publish",
]
