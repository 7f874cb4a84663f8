"""The weight-transfer engines for vLLM and verl, over stand-ins for these packages: weights arrive bit for bit."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from support.client_stubs import CheckpointEngineRegistry, ModuleSource, install_verl, install_vllm
from support.devices import on_cpu_and_gpu
from support.pool import RankPool
from torch_axon.runtime import Peer, Runtime

EXAMPLES = Path(__file__).parents[3] / "examples"
NUM_TRAINERS, NUM_ROUNDS = 2, 3
WORKERS = (2, 3)
CHUNK_BYTES = 3000  # the largest weight alone has more


def _example(name: str) -> ModuleType:
    (install_vllm if name.startswith("vllm") else install_verl)()
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(31, 33), nn.LayerNorm(33), nn.Linear(33, 1), nn.Linear(1, 5).bfloat16())


def _sharded(device: str) -> nn.Sequential:
    """A model on the trainers. All ranks must call this."""
    group = dist.new_group(range(NUM_TRAINERS))
    if dist.get_rank() >= NUM_TRAINERS:
        return _model()
    mesh = DeviceMesh.from_group(group, device)
    model = _model()
    for layer in model:  # one type per group of parameters
        fully_shard(layer, mesh=mesh)
    return model


def _change(model: nn.Module) -> None:
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(1.5).add_(0.25)


def _whole(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().cpu().clone() for name, weight in ModuleSource(model)}


class _Worker(nn.Module):
    """What vLLM's worker is for its engine: a model that loads weights, with functions for the trainer's client."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.loaded: dict[str, Tensor] = {}
        self.reloads: list[str] = []
        self.chunks = 0
        configs = SimpleNamespace(parallel_config=SimpleNamespace(rank=dist.get_rank()), model_config=None)
        vllm = sys.modules["vllm.distributed.weight_transfer"]
        device = torch.get_default_device()
        factory = vllm.WeightTransferEngineFactory
        self.engine = factory.create_engine(SimpleNamespace(backend="axon"), configs, device, self)
        use = (torch.cuda.set_device, (device,)) if device.type == "cuda" else (None, ())  # each thread has its own
        threads = ThreadPoolExecutor(1, initializer=use[0], initargs=use[1])
        runtime.register("start", executor=threads)(self.engine.start_weight_update)
        runtime.register("update", executor=threads)(self.engine.update_weights)
        runtime.register("finish", executor=threads)(self.engine.finish_weight_update)
        runtime.register("init", executor=threads)(self.init)

    def init(self, info: dict[str, Any]) -> None:
        self.engine.init_transfer_engine(self.engine.parse(self.engine.init_info_cls, info))

    def load_weights(self, weights: list[tuple[str, Tensor]]) -> None:
        self.chunks += 1
        self.loaded |= {name: weight.cpu().clone() for name, weight in weights}


class _Client:
    """The control plane, over another runtime."""

    def __init__(self, peers: list[Peer]) -> None:
        self._workers = [peers[rank] for rank in WORKERS]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init", init_info)

    def start_weight_update(self) -> None:
        self._call("start")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call("update", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish")

    def _call(self, function: str, *arguments: Any) -> None:
        for call in [worker.invoke(function, *arguments) for worker in self._workers]:
            call.result()


def _transfer_by_vllm(device: str) -> tuple[list[dict[str, Tensor]], int, list[str]]:
    """Returns the weights of each round, the number of chunks, and the calls of layerwise reloading."""
    example, rounds, rank = _example("vllm_weight_transfer"), [], dist.get_rank()
    model = _sharded(device)
    with Runtime(f"control {rank}") as control:
        worker = _Worker(control) if rank in WORKERS else None
        peers = control.meet()
        engine: Any = worker.engine if worker else None
        if worker is None:
            info = example.AxonTrainerInitInfo(rank=rank, chunk_bytes=CHUNK_BYTES)
            factory = sys.modules["vllm.distributed.weight_transfer"].WeightTransferTrainerFactory
            engine = factory.trainer_init(info, client=_Client(peers), source=ModuleSource(model))
        for _ in range(NUM_ROUNDS):
            if worker is None:
                _change(model)
                engine.send_weights()
                rounds.append(_whole(model))
            dist.barrier()
            if worker:
                rounds.append(dict(worker.loaded))
            dist.barrier()
        engine.shutdown()
    return rounds, worker.chunks if worker else 0, worker.reloads if worker else []


def _assert_equal(received: list[dict[str, Tensor]], sent: list[dict[str, Tensor]]) -> None:
    assert len(received) == len(sent) == NUM_ROUNDS
    for here, there in zip(received, sent, strict=True):
        assert here.keys() == there.keys()
        for name, weight in there.items():
            assert here[name].dtype == weight.dtype
            assert torch.equal(here[name], weight), name


@on_cpu_and_gpu
def test_vllm_workers_load_the_weights_of_a_sharded_trainer(fresh_ranks: Callable[..., RankPool], device: str) -> None:
    (sent, *_), _, *workers = fresh_ranks(4).run(_transfer_by_vllm, device, timeout_s=120)
    assert not torch.equal(sent[0]["0.weight"], sent[1]["0.weight"])
    for received, num_chunks, reloads in workers:
        _assert_equal(received, sent)
        assert num_chunks > NUM_ROUNDS
        assert reloads == ["begun", "ended"] * NUM_ROUNDS


async def _take(engine: Any, step: int) -> dict[str, Tensor]:
    return {name: weight.cpu().clone() async for name, weight in engine.receive_weights(global_steps=step)}


def _transfer_by_verl(device: str) -> list[dict[str, Tensor]]:
    """Returns the weights of each round. The ranks do what verl's manager makes its workers do."""
    _example("verl_checkpoint_engine")
    rounds, rank = [], dist.get_rank()
    model = _sharded(device)
    is_trainer = rank < NUM_TRAINERS
    options = {"device": device, "rollout_dtype": None, "host": "127.0.0.1"}
    kind = CheckpointEngineRegistry.engines["axon"]
    engine = kind(bucket_size=CHUNK_BYTES, is_master=rank == 0, **options)
    for step in range(NUM_ROUNDS):
        if is_trainer:
            _change(model)
        metadata: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(metadata, engine.prepare())
        trainers, rollouts = kind.build_topology(NUM_TRAINERS, len(WORKERS), metadata)
        own, index = (trainers, rank) if is_trainer else (rollouts, rank - NUM_TRAINERS)
        engine.init_process_group(**{name: values[index] for name, values in own.items()})
        if is_trainer:
            asyncio.run(engine.send_weights(iter(ModuleSource(model)), global_steps=step))
            rounds.append(_whole(model))
        else:
            rounds.append(asyncio.run(_take(engine, step)))
        engine.finalize()
    return rounds


@on_cpu_and_gpu
def test_verl_rollout_workers_receive_the_weights_of_a_sharded_trainer(
    fresh_ranks: Callable[..., RankPool], device: str
) -> None:
    sent, _, *rollouts = fresh_ranks(4).run(_transfer_by_verl, device, timeout_s=120)
    assert not torch.equal(sent[0]["0.weight"], sent[1]["0.weight"])
    for received in rollouts:
        _assert_equal(received, sent)


@pytest.fixture
def stand_ins() -> Iterator[None]:
    """Takes the stand-ins and the examples out of this process again, in which other tests look for the packages."""
    before = dict(sys.modules)
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - before.keys():
        if name.partition(".")[0] in ("vllm", "verl", "vllm_weight_transfer", "verl_checkpoint_engine"):
            del sys.modules[name]


@pytest.mark.usefixtures("stand_ins")
def test_wrong_uses_of_the_engines_are_refused_with_a_reason() -> None:
    vllm, verl = _example("vllm_weight_transfer"), _example("verl_checkpoint_engine")
    info = vllm.AxonTrainerInitInfo(rank=0)
    with pytest.raises(ValueError, match="source is None; the backend 'axon' needs a WeightSource"):
        vllm.AxonTrainerWeightTransferEngine.trainer_init(info, client=None)
    with pytest.raises(ValueError, match="1 names, 0 dtype_names and 1 shapes; allowed: as many of each"):
        vllm.AxonUpdateInfo(names=["a"], dtype_names=[], shapes=[[1]], handle="")
    configs = SimpleNamespace(parallel_config=SimpleNamespace(rank=0), model_config=None)
    engine = vllm.AxonWeightTransferEngine(None, configs, torch.device("cpu"), nn.Linear(1, 1))
    with pytest.raises(RuntimeError, match="has no trainer; call init_transfer_engine first"):
        engine.update_weights({"names": [], "dtype_names": [], "shapes": [], "handle": ""})
    with pytest.raises(ValueError, match="allowed: is_master=True there"):
        verl.AxonCheckpointEngine.build_topology(1, 1, [{}, {}])


def _verl_pair(verl: ModuleType) -> tuple[Any, Any]:
    """The engines of a master and of a rollout worker, both in this process."""
    master, rollout = (
        verl.AxonCheckpointEngine(CHUNK_BYTES, is_master, device="cpu", rollout_dtype=None, host="127.0.0.1")
        for is_master in (True, False)
    )
    return master, rollout


@pytest.mark.usefixtures("stand_ins")
def test_workers_that_joined_a_failed_round_are_not_taken_into_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    verl = _example("verl_checkpoint_engine")
    master, rollout = _verl_pair(verl)
    rollout.init_process_group(1, 1, master.prepare()["address"])
    rollout.finalize()
    master.finalize()
    master.prepare()
    monkeypatch.setattr(verl, "LONGEST_WAIT_S", 0.1)
    with pytest.raises(TimeoutError, match="0 of 1 rollout workers have connected"):
        master.init_process_group(0, 1, b"")
    master.finalize()


@pytest.mark.usefixtures("stand_ins")
def test_a_second_transfer_of_a_round_waits_for_its_own_readers() -> None:
    master, rollout = _verl_pair(_example("verl_checkpoint_engine"))
    rollout.init_process_group(1, 1, master.prepare()["address"])
    master.init_process_group(0, 1, b"")

    async def transfer(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        _, received = await asyncio.gather(master.send_weights(iter(weights.items())), _take(rollout, 0))
        return received

    for value in (1.0, 2.0):
        received = asyncio.run(transfer({"a": torch.full((4,), value)}))
        assert torch.equal(received["a"], torch.full((4,), value))
    rollout.finalize()
    master.finalize()


@pytest.mark.usefixtures("stand_ins")
def test_chunks_and_buckets_hold_no_more_weights_than_a_region_can() -> None:
    vllm, verl = _example("vllm_weight_transfer"), _example("verl_checkpoint_engine")
    source = ModuleSource(nn.ParameterList([torch.zeros(1) for _ in range(2100)]))
    trainer = vllm.AxonTrainerWeightTransferEngine.trainer_init(
        vllm.AxonTrainerInitInfo(rank=1), client=None, source=source
    )
    engine = verl.AxonCheckpointEngine(bucket_size=1 << 20)
    assert [len(chunk) for chunk in trainer._chunks()] == [2048, 52]
    assert [len(bucket) for bucket in engine._buckets(iter(source))] == [2048, 52]
    with Runtime("trainer") as runtime:
        assert runtime.expose([weight for _, weight in source][:2048]).nbytes == 2048 * 4
