"""Disaggregated serving: a prefill process hands a prompt's KV cache over to the decode process that continues it.

    python examples/kv_cache_handover.py [--layers 64] [--prompt-tokens 512] [--requests 3] [--device cuda]

The decode process owns a paged cache, and exposes it. The prefill process computes a prompt layer by layer. It writes
the pages of each layer with a plan as soon as they are computed, so they travel while the next layer is computed. Each
layer ends with a notification. When all layers have arrived, the decode process continues the prompt, and streams the
tokens to the client. The prompt's last token is left to the decode process, so nothing but the cache is handed over.

The client checks that the tokens are those of one process that does everything. Prefill and decode have a GPU each if
there are two.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from torch_axon.runtime import Blocks, Peer, Plan, Runtime, Transfer, current_call

WIDTH, HEADS, PAGE_TOKENS = 128, 4, 16
PAGE_BYTES = 2 * PAGE_TOKENS * WIDTH * torch.float32.itemsize  # keys and values
LONGEST_CALL_S, LONGEST_RUN = 600.0, timedelta(days=1)


def num_pages(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_TOKENS)


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(-2, -3)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, cache: Tensor, pages: Tensor, start: int) -> Tensor:
        """Adds keys and values of tokens `start` and following to the pages, and attends to all tokens there.

        Args:
            x: [num_tokens, WIDTH]
            cache: this layer's [num_pages, 2, PAGE_TOKENS, WIDTH]
            pages: the numbers of this request's pages
            start: the position of the first token
        """
        queries, keys, values = self.qkv(self.norm(x)).chunk(3, dim=-1)
        positions = torch.arange(start, start + len(x), device=x.device)
        cache[pages[positions // PAGE_TOKENS], :, positions % PAGE_TOKENS] = torch.stack((keys, values), dim=1)
        keys, values = cache[pages].transpose(0, 1).flatten(1, 2)[:, : start + len(x)]
        seen = positions[:, None] >= torch.arange(len(keys), device=x.device)
        attended = scaled_dot_product_attention(heads(queries), heads(keys), heads(values), attn_mask=seen)
        x = x + self.out(attended.transpose(-2, -3).flatten(-2))
        return x + self.mlp(x)


class Model(nn.Module):
    """A transformer over bytes, with the same random weights in each process."""

    def __init__(self, num_layers: int, most_tokens: int, device: torch.device) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.most_tokens = most_tokens
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(most_tokens, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(num_layers))
        self.head = nn.Linear(WIDTH, 256)
        self.to(device).requires_grad_(False)
        for layer in self.layers:  # attend to few tokens, as trained models do, so that each token depends on the cache
            layer.qkv.weight.mul_(4)
            layer.out.weight.mul_(4)

    def new_cache(self, num_pages: int) -> Tensor:
        return torch.zeros(len(self.layers), num_pages, 2, PAGE_TOKENS, WIDTH, device=self.head.weight.device)

    def embed(self, tokens: bytes, start: int = 0) -> Tensor:
        device = self.head.weight.device
        positions = torch.arange(start, start + len(tokens), device=device)
        return self.tokens(torch.tensor(list(tokens), device=device)) + self.positions(positions)

    def next_token(self, token: int, position: int, cache: Tensor, pages: Tensor) -> int:
        x = self.embed(bytes([token]), position)
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, layer_cache, pages, position)
        return int(self.head(x).argmax())


class Prefill:
    """Computes the keys and values of prompts, one prompt at a time."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._cache = model.new_cache(num_pages(model.most_tokens))
        self._plan: Plan | None = None
        self._pages_there = 0

    async def attach(self, handle: bytes) -> None:
        """Connects this process to the cache of the caller."""
        call = current_call()
        assert call is not None
        remote = await call.peer.aopen(handle)
        self._pages_there = remote.nbytes // PAGE_BYTES // len(self._model.layers)
        self._plan = call.peer.plan("write", Blocks(self._cache, PAGE_BYTES), Blocks(remote, PAGE_BYTES))

    def prefill(self, request: int, prompt: bytes, pages_there: Tensor) -> dict[str, Any]:
        """Writes all but the prompt's last token to these pages, with a notification for each layer."""
        assert self._plan is not None
        tokens = prompt[:-1]
        pages = torch.arange(num_pages(len(tokens)), dtype=torch.int32)
        pages_there, pages_on_device = pages_there[: len(pages)], pages.to(self._cache.device)
        transfers: list[Transfer] = []
        x = self._model.embed(tokens)
        try:
            for number, layer in enumerate(self._model.layers):
                x = layer(x, self._cache[number], pages_on_device, 0)
                here, there = number * self._cache.shape[1], number * self._pages_there
                transfers.append(self._plan.post(here + pages, there + pages_there, notify=b"%d" % request))
            computed = time.perf_counter()
            for transfer in transfers:
                transfer.result()
        except BaseException:
            wait_until_released(transfers)  # the next prompt overwrites the cache, which they read
            raise
        stats = [transfer.stats() for transfer in transfers]
        return {
            "bytes": sum(each.nbytes for each in stats),
            "seconds": sum(each.moved_us for each in stats) / 1e6,
            "exposed_ms": 1e3 * (time.perf_counter() - computed),
        }


def wait_until_released(transfers: list[Transfer]) -> None:
    """Waits until all have ended, whether or not they failed, and nothing uses their local memory."""
    for transfer in transfers:
        transfer.exception()
        while not transfer.released:
            time.sleep(1e-3)


class Decode:
    """Owns the paged cache, and continues each prompt whose pages have arrived."""

    def __init__(self, runtime: Runtime, model: Model, prefill: Peer, most_requests: int) -> None:
        self._runtime, self._model, self._prefill = runtime, model, prefill
        self.cache = model.new_cache(most_requests * num_pages(model.most_tokens))
        self._free = list(range(self.cache.shape[1]))
        self._requests = itertools.count()
        self._layers: Counter[int] = Counter()  # that have arrived, by request
        self._arrived: dict[int, asyncio.Future[None]] = {}
        self._handovers: deque[dict[str, Any]] = deque(maxlen=100)
        self.taking = asyncio.create_task(self._take_notifications())

    async def _take_notifications(self) -> None:
        """Counts layers, which arrive in any order, until it is cancelled."""
        while True:
            _, tag = await self._runtime.notification()
            request = int(tag)
            if request not in self._arrived:  # its prefill has failed, or its client has left
                continue
            self._layers[request] += 1
            if self._layers[request] == len(self._model.layers):
                self._arrived[request].set_result(None)

    async def generate(self, prompt: bytes, num_tokens: int) -> AsyncIterator[int]:
        num_positions = len(prompt) - 1 + num_tokens  # the last token is not fed back
        needed = num_pages(num_positions)
        if len(prompt) < 2 or num_tokens < 1 or num_positions > self._model.most_tokens:
            raise ValueError(
                f"generate: {len(prompt)} tokens of a prompt and {num_tokens} more; "
                f"allowed: 2 and 1 or more, {self._model.most_tokens + 1} in all"
            )
        if needed > len(self._free):
            raise BufferError(f"generate: {needed} pages are needed, and {len(self._free)} are free")
        pages = torch.tensor([self._free.pop() for _ in range(needed)], dtype=torch.int32)
        pages_on_device = pages.to(self.cache.device)
        request = next(self._requests)
        arrived = self._arrived[request] = asyncio.get_running_loop().create_future()
        answer = asyncio.ensure_future(self._prefill.invoke("prefill", request, prompt, pages))
        try:
            await asyncio.wait([arrived, answer, self.taking], return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()  # raises if the prefill process has failed
            await asyncio.wait([arrived, self.taking], return_when=asyncio.FIRST_COMPLETED)
            if not arrived.done():
                self.taking.result()  # raises what has ended it
            token = prompt[-1]
            for position in range(len(prompt) - 1, num_positions):
                step = (token, position, self.cache, pages_on_device)
                token = await asyncio.to_thread(self._model.next_token, *step)
                yield token
        finally:  # also if the client has left
            await asyncio.wait([answer])
            del self._arrived[request]
            self._layers.pop(request, None)
            if answer.exception() is None:  # otherwise layers may still arrive in these pages
                self._free += pages.tolist()
                self._handovers.append(answer.result())

    def report(self) -> list[dict[str, Any]]:
        return list(self._handovers)


def run_prefill(store: dist.Store, model: Model, arguments: argparse.Namespace) -> None:
    prefill = Prefill(model)
    with Runtime("prefill", timeout=LONGEST_CALL_S) as runtime:
        runtime.register(prefill.attach)
        runtime.register(executor=ThreadPoolExecutor(1))(prefill.prefill)
        store.set("prefill", runtime.address)
        store.wait(["done"], LONGEST_RUN)


async def run_decode(store: dist.Store, model: Model, arguments: argparse.Namespace) -> None:
    async with Runtime("decode", timeout=LONGEST_CALL_S) as runtime:
        prefill = await runtime.aconnect(store.get("prefill"))
        decode = Decode(runtime, model, prefill, arguments.requests)
        with runtime.expose(decode.cache, "w", name="kv cache") as region:
            await prefill.invoke("attach", region.handle(peer=prefill.incarnation))
            runtime.register(decode.generate)
            runtime.register(decode.report)
            store.set("decode", runtime.address)
            await asyncio.to_thread(store.wait, ["done"], LONGEST_RUN)
            decode.taking.cancel()


async def ask(decode: Peer, prompt: bytes, num_tokens: int) -> tuple[float, list[int]]:
    """Returns the milliseconds until the first token, and all tokens."""
    began, first, tokens = time.perf_counter(), 0.0, []
    async for token in decode.iterate("generate", prompt, num_tokens):
        first = first or time.perf_counter() - began
        tokens.append(token)
    return 1e3 * first, tokens


def complete_alone(model: Model, prompt: bytes, num_tokens: int) -> list[int]:
    cache = model.new_cache(num_pages(model.most_tokens))
    pages = torch.arange(cache.shape[1], device=cache.device)
    x = model.embed(prompt[:-1])
    for layer, layer_cache in zip(model.layers, cache, strict=True):
        x = layer(x, layer_cache, pages, 0)
    tokens = [prompt[-1]]
    for position in range(len(prompt) - 1, len(prompt) - 1 + num_tokens):
        tokens.append(model.next_token(tokens[-1], position, cache, pages))
    return tokens[1:]


async def run_client(store: dist.Store, model: Model, arguments: argparse.Namespace) -> None:
    text = "\n".join(topics.values()).encode("ascii", "ignore")
    prompts = [text[i * arguments.prompt_tokens :][: arguments.prompt_tokens] for i in range(arguments.requests)]
    async with Runtime("client", timeout=LONGEST_CALL_S) as runtime:
        decode = await runtime.aconnect(store.get("decode"))
        answers = await asyncio.gather(*(ask(decode, prompt, arguments.new_tokens) for prompt in prompts))
        handovers = await decode.invoke("report")
    store.set("done", b"")
    for number, (first_ms, tokens) in enumerate(answers):
        print(f"request {number}: first token after {first_ms:.0f} ms, then {tokens[:8]} …")
    for each in handovers:
        print(
            f"handover: {each['bytes'] / 2**20:.1f} MiB of {arguments.layers} layers at "
            f"{each['bytes'] / each['seconds'] / 1e9:.2f} GB/s, {each['exposed_ms']:.2f} ms after the last computation"
        )
    for prompt, (_, tokens) in zip(prompts, answers, strict=True):
        if tokens != complete_alone(model, prompt, arguments.new_tokens):
            raise AssertionError("the tokens differ from those of one process")
    print(f"the tokens of {len(answers)} requests are those of one process", flush=True)


def run(role: int, port: int, arguments: argparse.Namespace) -> None:
    """Runs one of the processes. They exchange addresses in a store of the parent."""
    store = dist.TCPStore("127.0.0.1", port)
    device = torch.device("cpu")
    if arguments.device == "cuda":
        device = torch.device("cuda", role % 2 % torch.cuda.device_count())
        torch.cuda.set_device(device)
    torch.set_num_threads(1)  # sums of floats depend on the number of threads
    model = Model(arguments.layers, arguments.prompt_tokens + arguments.new_tokens, device)
    if role == 0:
        run_prefill(store, model, arguments)
    else:
        asyncio.run((run_decode if role == 1 else run_client)(store, model, arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--requests", type=int, default=3, help="at the same time")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    if min(arguments.layers, arguments.prompt_tokens - 1, arguments.new_tokens, arguments.requests) < 1:
        parser.error("--layers, --new-tokens and --requests must be 1 or more, --prompt-tokens 2 or more")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.set_forkserver_preload(["torch_axon.runtime"])  # imported once for all processes
    mp.start_processes(run, (store.port, arguments), 3, start_method="forkserver")  # ends all if one fails


if __name__ == "__main__":
    main()
