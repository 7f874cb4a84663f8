"""An inference server over torch_axon.Runtime: batches requests, streams characters, stops when a caller leaves.

    python examples/inference_server.py [--clients 8] [--characters 200]

The parent starts a server on a port and sends requests at once; `wait=` covers the time in which the server starts. The
model counts which character follows which two in torch's own documentation, and continues a prompt. All waiting prompts
form one batch for each character, whichever client has sent them.

One caller gives up in the middle of its answer: the coroutine that works for it is cancelled, and `current_call()`
names the caller. The others continue.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import secrets
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torch_axon.runtime import Peer, Runtime, current_call

ALPHABET = 128  # ASCII
LONGEST_START_S = 60.0


def learn(text: str) -> Tensor:
    """Returns the probability of each character after each two. [128, 128, 128]"""
    codes = torch.tensor([min(ord(character), ALPHABET - 1) for character in text])
    counts = torch.full((ALPHABET, ALPHABET, ALPHABET), 1e-6)
    counts.index_put_((codes[:-2], codes[1:-1], codes[2:]), torch.tensor(1.0), accumulate=True)
    return counts / counts.sum(dim=2, keepdim=True)


@dataclass
class Batcher:
    """Draws the next character for all waiting requests at once."""

    model: Tensor
    _waiting: list[tuple[str, asyncio.Future[str]]] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)

    async def next_character(self, text: str) -> str:
        drawn: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting.append((text, drawn))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._draw)  # after all other requests of this turn have been queued
        return await drawn

    def _draw(self) -> None:
        batch, self._waiting = self._waiting, []
        self.batch_sizes.append(len(batch))
        ends = torch.tensor([[min(ord(character), ALPHABET - 1) for character in text[-2:]] for text, _ in batch])
        characters = torch.multinomial(self.model[ends[:, 0], ends[:, 1]], 1).flatten().tolist()
        for (_, drawn), character in zip(batch, characters, strict=True):
            if not drawn.done():
                drawn.set_result(chr(character))


async def serve(port: int, secret: bytes) -> None:
    batcher = Batcher(learn((torch.__doc__ or "") + (torch.nn.Module.__doc__ or "") + (torch.optim.Adam.__doc__ or "")))
    left: list[str] = []
    stopped = asyncio.Event()
    async with Runtime("inference server", secret=secret) as runtime:

        @runtime.register
        async def complete(prompt: str, num_characters: int) -> str:
            if len(prompt) < 2:
                raise ValueError(f"complete: prompt is {prompt!r}; allowed: two characters or more")
            call = current_call()
            assert call is not None
            text = prompt
            try:
                for _ in range(num_characters):
                    text += await batcher.next_character(text)
            except asyncio.CancelledError:
                left.append(call.peer.name)
                raise
            return text

        @runtime.register
        async def stream(prompt: str) -> AsyncIterator[str]:
            text = prompt
            while True:
                text += await batcher.next_character(text)
                yield text[-1]

        @runtime.register
        def report() -> dict[str, Any]:
            return {"batches": len(batcher.batch_sizes), "largest": max(batcher.batch_sizes), "left": left}

        @runtime.register
        def stop() -> None:
            loop.call_soon_threadsafe(stopped.set)

        loop = asyncio.get_running_loop()
        runtime.listen("127.0.0.1", port)
        await stopped.wait()


def run_server(port: int, secret: bytes) -> None:
    torch.set_num_threads(1)
    asyncio.run(serve(port, secret))


async def ask(server: Peer, arguments: argparse.Namespace) -> None:
    prompts = [f"{word} " for word in ("The", "A tensor", "Adds", "Returns", "parameters", "If", "module", "is")]
    asked = [prompts[i % len(prompts)] for i in range(arguments.clients)]
    calls = [server.invoke("complete", prompt, arguments.characters) for prompt in asked]
    leaving = server.invoke("complete", "An endless story ", 10_000_000)
    for prompt, text in zip(asked, await asyncio.gather(*calls), strict=True):
        assert text.startswith(prompt)
        assert len(text) == len(prompt) + arguments.characters
    print(f"{asked[0]!r} goes on: {calls[0].result()!r}")
    leaving.cancel()
    async with server.iterate("stream", "The ", ahead=4) as characters:
        streamed = [await anext(characters) for _ in range(40)]
    print(f"streamed: {''.join(streamed)!r}")
    try:
        await server.invoke("complete", "x", 1)
    except ValueError as error:
        print(f"refused: {error}")
    while not (report := await server.invoke("report"))["left"]:
        await asyncio.sleep(0.01)
    print(f"{report['batches']} batches, of up to {report['largest']} requests; {report['left'][0]!r} gave one up")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--characters", type=int, default=200)
    arguments = parser.parse_args()
    secret = secrets.token_bytes(32)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = multiprocessing.get_context("spawn").Process(target=run_server, args=(port, secret), daemon=True)
    server.start()
    async with Runtime("client", secret=secret) as runtime:
        peer = await runtime.aconnect(f"127.0.0.1:{port}", wait=LONGEST_START_S)
        await ask(peer, arguments)
        await peer.invoke("stop")
    server.join(LONGEST_START_S)
    if server.exitcode != 0:
        raise SystemExit(f"the server has ended with {server.exitcode}")


if __name__ == "__main__":
    asyncio.run(main())
