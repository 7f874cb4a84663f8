"""A sharded trainer writes its weights into two generators, which continue to generate meanwhile.

    python examples/weight_transfer.py [--steps 6] [--device cuda]

Two ranks train a small language model under FSDP2. After each step, each rank writes its shards straight into the
parameters of each generator, as one transfer that ends with a notification. It waits for these transfers just before
it changes the weights again, so they overlap with forward and backward.

A generator has two models: one generates, and the ranks write the other one. When the shards of all ranks have arrived,
it changes to that model between two characters, and tells the ranks that the other model is free. So it never computes
with weights of two versions. All versions are compared bit for bit with the trainer's state dict: when a generator
begins to use them, and when it has used them.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import torch_axon  # noqa: F401 registers the backend; not needed where torch's autoload is on
from torch_axon.runtime import Peer, Remote, Runtime, Transfer, current_call

NUM_TRAINERS = NUM_GENERATORS = 2
CONTEXT, UPDATES_PER_STEP, BATCH_PER_RANK = 8, 25, 64
BEGINNING = "The module "
LONGEST_WAIT_S = 120.0


def make_model(device: torch.device) -> nn.Sequential:
    """Returns a model that predicts an ASCII character from the CONTEXT previous ones."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Embedding(128, 32), nn.Flatten(), nn.Linear(32 * CONTEXT, 256), nn.GELU(), nn.Linear(256, 128)
    ).to(device)


def digest(weights: Iterable[Tensor]) -> bytes:
    return hashlib.sha256(b"".join(each.detach().cpu().numpy().tobytes() for each in weights)).digest()


def own_shards(model: nn.Module, rank: int) -> Iterator[tuple[slice, Tensor]]:
    """Yields where each of this rank's shards is in memory that has all parameters one after the other, and the shard.

    FSDP2 splits the first dimension as torch.chunk does, so a shard is contiguous memory of the whole parameter.
    """
    offset = 0
    for parameter in model.parameters():
        shard = parameter.to_local().detach()
        num_rows = len(parameter)
        begin = offset + min(rank * -(-num_rows // NUM_TRAINERS), num_rows) * (parameter.nbytes // num_rows)
        yield slice(begin, begin + shard.nbytes), shard
        offset += parameter.nbytes


class Publisher:
    """Writes one rank's shards into all generators, version by version."""

    def __init__(self, runtime: Runtime, store: dist.Store) -> None:
        self._runtime = runtime
        self._generators: list[tuple[Peer, list[Remote]]] = []
        for number in range(NUM_GENERATORS):
            generator = runtime.connect(store.get(f"generator {number}"))
            self._generators.append((generator, generator.open_all(generator.invoke("handles").result())))
        self._transfers: list[Transfer] = []
        self._in_use: Counter[int] = Counter()  # the number of generators that use a version, or have used it

    def publish(self, version: int, shards: list[tuple[slice, Tensor]]) -> None:
        """Begins to write a version. The shards must not change until `drain` returns."""
        self.await_use_of(version - 1)  # so that the model that had version - 2 is free
        for generator, models in self._generators:
            parts = [models[version % 2][part] for part, _ in shards]
            self._transfers.append(generator.writev(parts, [shard for _, shard in shards], notify=b"%d" % version))

    def drain(self) -> None:
        while self._transfers:
            self._transfers.pop().result()

    def await_use_of(self, version: int) -> None:
        while version > 0 and self._in_use[version] < NUM_GENERATORS:
            arrived = self._runtime.notifications(timeout=LONGEST_WAIT_S)
            if not arrived:
                raise TimeoutError(f"version {version}: only {self._in_use[version]} generators use it")
            self._in_use.update(int(tag) for _, tag in arrived)


def train(rank: int, store: dist.Store, device: torch.device, num_steps: int) -> None:
    bound = device if device.type == "cuda" else None
    dist.init_process_group("axon", store=store, rank=rank, world_size=NUM_TRAINERS, device_id=bound)
    model = fully_shard(make_model(device), mesh=init_device_mesh(device.type, (NUM_TRAINERS,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode("ascii", "ignore")), dtype=torch.uint8)
    passages = text.to(device).long().unfold(0, CONTEXT + 1, 1)
    generator = torch.Generator().manual_seed(rank)
    with Runtime(f"trainer {rank}", timeout=LONGEST_WAIT_S) as runtime:
        publisher = Publisher(runtime, store)
        for step in range(1, num_steps + 1):
            for _ in range(UPDATES_PER_STEP):
                batch = passages[torch.randint(len(passages), (BATCH_PER_RANK,), generator=generator).to(device)]
                optimizer.zero_grad()
                loss = cross_entropy(model(batch[:, :-1]), batch[:, -1])
                loss.backward()
                publisher.drain()
                optimizer.step()
            publisher.publish(step, list(own_shards(model, rank)))
            whole = digest(each.full_tensor() for each in model.state_dict().values())
            if rank == 0:
                store.set(f"trainer, version {step}", whole)
                print(f"version {step}: loss {loss.item():.2f}", flush=True)
        publisher.drain()
        publisher.await_use_of(num_steps)
    dist.destroy_process_group()


@torch.no_grad()
def next_character(model: nn.Module, text: str, device: torch.device) -> str:
    context = torch.tensor([list(text[-CONTEXT:].encode())], device=device)
    return chr(int(torch.multinomial(model(context)[0].softmax(dim=0), 1)))


def generate(number: int, store: dist.Store, device: torch.device, num_steps: int) -> None:
    models = [make_model(device).requires_grad_(False) for _ in range(2)]
    with Runtime(f"generator {number}", timeout=LONGEST_WAIT_S) as runtime:
        regions = [runtime.expose(list(model.parameters()), "w", name=f"model {i}") for i, model in enumerate(models)]

        @runtime.register
        def handles() -> list[bytes]:
            call = current_call()
            assert call is not None
            return [region.handle(peer=call.peer.incarnation) for region in regions]

        store.set(f"generator {number}", runtime.address)
        writers: list[Peer] = []  # the ranks whose shards of the next version have arrived
        for version in range(num_steps + 1):
            model = models[version % 2]
            begun = digest(model.state_dict().values())
            store.set(f"generator {number}, version {version}", begun)
            for writer in writers:
                writer.notify(b"%d" % version).result()
            writers, text, deadline = [], BEGINNING, time.monotonic() + LONGEST_WAIT_S
            while len(text) < 40 or (version < num_steps and len(writers) < NUM_TRAINERS):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"version {version + 1} has not arrived within {LONGEST_WAIT_S:.0f} s")
                text += next_character(model, text, device)
                writers += [writer for writer, _ in runtime.notifications()]
            if digest(model.state_dict().values()) != begun:
                raise AssertionError(f"the weights of version {version} have changed while they were used")
            print(f"generator {number}, version {version}: {len(text)} characters, {text[:40]!r} …", flush=True)


def run(number: int, port: int, arguments: argparse.Namespace) -> None:
    """Runs a rank of the trainer, or a generator. They exchange addresses in a store of the parent."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port)
    device = torch.device("cpu")
    if arguments.device == "cuda":
        device = torch.device("cuda", number % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if number < NUM_TRAINERS:
        train(number, store, device, arguments.steps)
    else:
        generate(number - NUM_TRAINERS, store, device, arguments.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error("--steps must be 1 or more")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda needs a GPU")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.set_forkserver_preload(["torch.distributed.fsdp"])  # imported once for all processes
    mp.start_processes(
        run, (store.port, arguments), NUM_TRAINERS + NUM_GENERATORS, start_method="forkserver"
    )  # ends all if one fails
    for version in range(1, arguments.steps + 1):
        expected = store.get(f"trainer, version {version}")
        for number in range(NUM_GENERATORS):
            if store.get(f"generator {number}, version {version}") != expected:
                raise SystemExit(f"version {version} of generator {number} differs from the trainer's state dict")
    print(f"{arguments.steps} versions of {NUM_GENERATORS} generators equal the trainer's state dict, bit for bit")


if __name__ == "__main__":
    main()
