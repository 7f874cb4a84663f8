"""A listener in a process of its own: python dask_listener.py ADDRESS. It prints its address, and then serves.

A message is a request: "echo" a value, "close" the comm, or "kill" the process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from distributed.comm import Comm, CommClosedError, listen
from distributed.protocol import to_serialize


async def serve(comm: Comm) -> None:
    try:
        while True:
            request = await comm.read()
            if request["do"] == "echo":
                await comm.write({"value": to_serialize(request["value"])})
            elif request["do"] == "close":
                await comm.close()
            else:
                os.kill(os.getpid(), signal.SIGKILL)
    except CommClosedError:
        pass


async def main() -> None:
    async with listen(sys.argv[1], serve) as listener:
        print(listener.contact_address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
