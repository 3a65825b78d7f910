"""What several ranks store together is what one process stores, item by item, whoever of them is killed and whoever goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.extraction.test_rows import ragged
from tests.processes import Rank, on_ranks, values
from tests.quick import quick
from tests.ranks.trainings import Net
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import sonde
from sonde.errors import ArgumentError, RankError, StoreError

pytestmark = pytest.mark.first_is_quick

LIMIT = 120.0
SITES = r"^embed$|blocks\.\d$|up$|down$|head"


def model(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().double().eval()


def data(count: int = 13, seed: int = 1) -> list[Tensor]:
    """Batches of 1 to 5 items."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 6, (count,), generator=generator).tolist()
    return [torch.randn(size, 8, generator=generator, dtype=torch.float64) for size in sizes]


def plain() -> nn.Module:
    return model()


def ddp() -> nn.Module:
    made = model()
    made.register_buffer("counted", torch.zeros(2))  # which DDP sends to all ranks before each forward
    return DistributedDataParallel(made)


def fsdp() -> nn.Module:
    made = model()
    for block in made.blocks.values():
        fully_shard(block)
    return fully_shard(made)  # type: ignore[no-any-return]


def tensor_parallel(*, sharded: bool = False) -> nn.Module:
    made = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    for block in made.blocks.values():
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    assert made.head is not None
    parallelize_module(made, mesh["tensor"], {"head": ColwiseParallel()})
    if sharded:
        for block in made.blocks.values():
            fully_shard(block, mesh=mesh["data"])
        fully_shard(made, mesh=mesh["data"])
    return made


def both() -> nn.Module:
    return tensor_parallel(sharded=True)


MODELS: dict[str, Callable[[], nn.Module]] = {each.__name__: each for each in (plain, ddp, fsdp, tensor_parallel, both)}


class Killed(list[Tensor]):
    """A list in which one rank, or all, die at a batch."""

    def __init__(self, batches: list[Tensor], at: int, ranks: tuple[int, ...]) -> None:
        super().__init__(batches)
        self.at, self.ranks = at, ranks

    def __iter__(self) -> Iterator[Tensor]:
        for number, batch in enumerate(self[:]):
            if number == self.at and dist.get_rank() in self.ranks:
                time.sleep(0.3)  # so that shards before are written
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


Killed.__qualname__ = "list"


def extracted(folder: Path, kind: str, at: int = -1, ranks: tuple[int, ...] = (), count: int = 13) -> bool:
    store = sonde.extract(MODELS[kind](), Killed(data(count), at, ranks), SITES, folder, shard=4_000)
    return bool(store.complete)


def alone(folder: Path, count: int = 13) -> Any:
    return sonde.extract(model(), data(count), SITES, folder, shard=4_000)


def held(store: Any) -> dict[int, dict[str, Tensor]]:
    return {number: store.item(number) for number in range(store.item_span[1] + 1)}


def check_equal(store: Any, wanted: Any, tolerance: float = 1e-12) -> None:
    """Each item once, with the same rows in every column: float64 of sums of 32 terms, in whatever order a kernel adds them up."""
    assert store.complete
    assert store.verify() == []
    assert tuple(store) == tuple(wanted)
    assert len(store["item"]) == len(wanted["item"])
    mine, theirs = held(store), held(wanted)
    assert mine.keys() == theirs.keys()
    for number, rows in theirs.items():
        for column, tensor in rows.items():
            torch.testing.assert_close(mine[number][column], tensor, rtol=tolerance, atol=tolerance)


CASES = [("plain", 2), ("plain", 4), ("ddp", 3), ("fsdp", 2), ("fsdp", 3), ("tensor_parallel", 2), ("both", 4)]


@pytest.mark.parametrize(("kind", "n"), quick(CASES, ("plain", 2), ("fsdp", 3)))
def test_the_store_of_ranks_is_that_of_one_process(tmp_path: Path, kind: str, n: int) -> None:
    """Item by item, with batches of 1 to 5 items, whose number the ranks do not divide."""
    assert all(values(on_ranks(n, extracted, tmp_path / "t", kind, limit=LIMIT)))
    wanted = alone(tmp_path / "one")
    store = sonde.open_tensors(tmp_path / "t")
    check_equal(store, wanted)
    assert (store.about["weights"] == wanted.about["weights"]) == (kind != "ddp")  # which has a buffer more
    assert store.about["items"] == wanted.about["items"]
    assert torch.equal(torch.cat([part["item"] for part in store.shuffled(7)]).sort().values, wanted["item"][:])
    assert list(tmp_path.glob("t/*.jsonl")) == list(tmp_path.glob("t/.lock*")) == []


def test_a_store_of_ranks_is_returned_at_once(tmp_path: Path) -> None:
    """Also to one process, and to other models of the same weights."""
    on_ranks(2, extracted, tmp_path / "t", "fsdp", limit=LIMIT)
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "t").iterdir()}
    on_ranks(3, extracted, tmp_path / "t", "plain", 0, (0, 1, 2), limit=LIMIT)
    assert alone(tmp_path / "t").complete
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "t").iterdir()} == before


def ended(ranks: list[Rank]) -> None:
    for rank in ranks:
        assert not rank.hung, str(rank)


@pytest.mark.slow
@pytest.mark.parametrize("later", quick([1, 2, 3], 3))
@pytest.mark.parametrize("killed", [(1,), (0, 1)], ids=["one", "all"])
def test_killed_ranks_are_continued_by_any_number(tmp_path: Path, killed: tuple[int, ...], later: int) -> None:
    """The others keep their shards, say who is lost, and do not hang."""
    ranks = on_ranks(2, extracted, tmp_path / "t", "plain", 9, killed, check=False, limit=LIMIT)
    ended(ranks)
    if killed == (1,):
        assert "RankError: rank 1 died, or closed the connection. Whole shards stay" in str(ranks[0].error)
    store = sonde.open_tensors(tmp_path / "t")
    assert not store.complete
    assert len(store["item"]) > 5
    if later == 1:
        alone(tmp_path / "t")
    else:
        on_ranks(later, extracted, tmp_path / "t", "plain", limit=LIMIT)
    check_equal(sonde.open_tensors(tmp_path / "t"), alone(tmp_path / "one"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp", "tensor_parallel"])
def test_ranks_that_need_each_other_end_with_a_lost_one(tmp_path: Path, kind: str) -> None:
    """And are continued, also by one process that holds the whole model."""
    ranks = on_ranks(2, extracted, tmp_path / "t", kind, 9, (1,), check=False, limit=LIMIT)
    ended(ranks)
    assert "RankError: rank 1 died, or closed the connection. Whole shards stay" in str(ranks[0].error)
    if kind == "tensor_parallel":
        on_ranks(4, extracted, tmp_path / "t", "both", limit=LIMIT)
    else:
        alone(tmp_path / "t")
    check_equal(sonde.open_tensors(tmp_path / "t"), alone(tmp_path / "one"))


def test_ranks_go_on_with_what_one_process_began(tmp_path: Path) -> None:
    with pytest.warns(sonde.errors.ObservationWarning, match="max_bytes"):
        sonde.extract(model(), data(), SITES, tmp_path / "t", shard=4_000, max_bytes=20_000)
    on_ranks(3, extracted, tmp_path / "t", "fsdp", limit=LIMIT)
    check_equal(sonde.open_tensors(tmp_path / "t"), alone(tmp_path / "one"))


def killed_after(folder: Path, kind: str, delays: dict[int, float]) -> bool:
    """Extract slowly, and die so many seconds after the model is there."""
    from sonde.extraction import crew

    crew._COMING = 5.0
    made, delay = MODELS[kind](), delays.get(dist.get_rank())
    dist.barrier()
    if delay is not None:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return bool(sonde.extract(made, Slow(data(60)), SITES, folder, shard=4_000).complete)


class Slow(list[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for batch in self[:]:
            time.sleep(0.005)
            yield batch


Slow.__qualname__ = "list"


@pytest.mark.slow
def test_ranks_that_are_killed_at_random_moments(tmp_path: Path) -> None:
    """Sixteen times, some of 1 to 4 ranks, while they begin, run, write or end; what is there is whole at any time."""
    chance = random.Random(0)
    for _ in range(16):
        n = chance.randint(1, 4)
        who = [rank for rank in range(n) if chance.random() < 0.6] or [0]
        delays = {rank: 0.05 + 0.8 * chance.random() for rank in who}
        kind = chance.choice(["plain", "fsdp"])
        ended(on_ranks(n, killed_after, tmp_path / "t", kind, delays, check=False, limit=LIMIT))
        with contextlib.suppress(StoreError):  # it holds nothing yet
            store = sonde.open_tensors(tmp_path / "t")
            assert store.verify() == []
            assert len(store["item"][:].unique()) == len(store["item"])
    on_ranks(2, killed_after, tmp_path / "t", "plain", {}, limit=LIMIT)
    check_equal(sonde.open_tensors(tmp_path / "t"), alone(tmp_path / "one", 60))


# What is refused


def summed(batch: Tensor) -> Tensor:
    """Of some batches that rank 1 has, too few."""
    return batch.sum(1)[: len(batch) - (dist.get_rank() == 1 and len(batch) > 2)]


def refused(folder: Path, case: str) -> str:
    """Return the sentence with which a call on this rank ends."""
    rank = dist.get_rank()
    made: nn.Module = model(rank if case == "weights" else 0)
    batches = data()
    given: dict[str, Any] = {"include": SITES, "to": folder, "shard": 4_000}
    if case == "sites":
        given["include"] = "embed" if rank else "head"
    elif case == "folder":
        given["to"] = folder.with_name(f"t{rank}")
    elif case == "order of the data":
        batches = data(seed=rank)
    elif case == "a later batch" and rank:
        batches[7] = batches[7] + 1
    elif case == "stored weights":
        made = model(5)
    elif case == "stored data":
        batches[2] = batches[2] + 1
    elif case == "length":
        batches = data(14)
    elif case == "model":
        given["columns"] = {"sum": summed}
    elif case == "stage":
        made.blocks.pop(str(rank))
        given["include"] = "norm"
    elif case == "FSDP1":
        made = nn.Sequential()
        made.register_module("_fsdp_wrapped_module", model())
    elif case == "part":
        made = tensor_parallel()
        given["include"] = "act"
    try:
        sonde.extract(made, batches, **given)
    except (ArgumentError, RankError, StoreError) as error:
        return f"{type(error).__name__}: {error}"
    return "complete"


REFUSED = {
    "weights": ("the ranks do not agree on the weights", ""),
    "sites": ("the ranks do not agree on the sites", ""),
    "folder": ("the ranks do not agree on to=", ""),
    "order of the data": ("the ranks read other data than each other", ""),
    "a later batch": ("the ranks have read other data than each other", ""),
    "stored weights": ("the weights: was", "begun"),
    "stored data": ("batch 2 of the data is not the one that is stored", "begun"),
    "length": ("batches of the data: was 13, is 14", "begun"),
    "model": ("columns: 'sum' has the shape", ""),
    "stage": ("the ranks do not agree on code of the model", ""),
    "FSDP1": ("use FSDP2", ""),
    "part": ("each holds a part", ""),
}


@pytest.mark.parametrize("case", quick(REFUSED, "weights", "order of the data", "stored data", "FSDP1"))
def test_what_is_something_else_is_refused_on_all_ranks(tmp_path: Path, case: str) -> None:
    """With the same sentence, and nobody hangs; what was stored can be continued."""
    said, begun = REFUSED[case]
    if begun:
        ended(on_ranks(2, extracted, tmp_path / "t", "plain", 9, (0, 1), check=False, limit=LIMIT))
    sentences = values(on_ranks(2, refused, tmp_path / "t", case, limit=LIMIT))
    assert all(said in sentence for sentence in sentences), sentences
    if begun:
        on_ranks(2, extracted, tmp_path / "t", "plain", limit=LIMIT)
        check_equal(sonde.open_tensors(tmp_path / "t"), alone(tmp_path / "one"))


def raising(folder: Path) -> tuple[str, int]:
    """Return the error of this rank, and how many batches it has read."""
    read = 0

    class Slower(list[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            nonlocal read
            for read, batch in enumerate(self[:], 1):
                if read == 5 and dist.get_rank() == 1:
                    raise ZeroDivisionError("no more")
                time.sleep(0.05 if read < 5 else 0.5)
                yield batch

    try:
        sonde.extract(model(), Slower(data(60)), SITES, folder)
    except (RankError, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {error}", read
    return "complete", read


@pytest.mark.slow
def test_a_rank_that_raises_ends_the_others(tmp_path: Path) -> None:
    """By its error, long before the end of the data; what the others have so far is stored, though their shards are not full."""
    (said, read), (own, _) = values(on_ranks(2, raising, tmp_path / "t", limit=LIMIT))
    assert said.startswith("RankError: rank 1: ZeroDivisionError: no more. Whole shards stay")
    assert own == "ZeroDivisionError: no more"
    assert read < 40
    assert len(sonde.open_tensors(tmp_path / "t")["item"]) > 2


def missing(folder: Path) -> str:
    if dist.get_rank() == 1:
        return str(sonde.extract(model(), data(), SITES, folder, ranks="alone").complete)
    from sonde.extraction import crew

    crew._COMING = 1.0
    with pytest.raises(RankError, match=r"only rank 0 of 2 called sonde\.extract within 1 s") as raised:
        sonde.extract(model(), data(), SITES, folder.with_name("other"))
    return str(raised.value)


def test_a_rank_that_does_not_call(tmp_path: Path) -> None:
    """One process can extract by itself; of all, a missing one is named."""
    waited, done = values(on_ranks(2, missing, tmp_path / "t", limit=LIMIT))
    assert "call it on all ranks, or with ranks='alone'" in waited
    assert done == "True"
    check_equal(sonde.open_tensors(tmp_path / "t"), alone(tmp_path / "one"))


def stopped_short(folder: Path, kind: str) -> list[str]:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = sonde.extract(MODELS[kind](), data(), SITES, folder, shard=4_000, max_bytes=30_000)
    assert not store.complete
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("kind", quick(["plain", "fsdp"], "plain"))
def test_most_bytes_of_ranks(tmp_path: Path, kind: str) -> None:
    """Each has its share of them; the first says so; the same call with more goes on."""
    first, second = values(on_ranks(2, stopped_short, tmp_path / "t", kind, limit=LIMIT))
    assert len(first) == 1
    assert "max_bytes is 30.0 kB" in first[0]
    assert second == []
    assert sonde.open_tensors(tmp_path / "t").nbytes < 30_000
    on_ranks(2, extracted, tmp_path / "t", kind, limit=LIMIT)
    check_equal(sonde.open_tensors(tmp_path / "t"), alone(tmp_path / "one"))


# Batches and models that write


class Writes(nn.Module):
    """Writes into what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, x: Tensor) -> Any:
        return self.inner(x.mul_(2))


class Reused:
    """Gives all batches in the same memory."""

    def __iter__(self) -> Iterator[Tensor]:
        held = torch.zeros(4, 8, dtype=torch.float64)
        for number in range(11):
            yield held.copy_(torch.arange(32).reshape(4, 8) + number)


def written_into(folder: Path, sharded: bool) -> bool:
    made: Any = Writes().eval()
    store = sonde.extract(fully_shard(made) if sharded else made, Reused(), "head", folder, shard=300)
    return bool(store.complete)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "fsdp"])
def test_batches_in_the_same_memory_that_the_model_writes_into(tmp_path: Path, sharded: bool) -> None:
    on_ranks(2, written_into, tmp_path / "t", sharded, limit=LIMIT)
    check_equal(sonde.open_tensors(tmp_path / "t"), sonde.extract(Writes().eval(), Reused(), "head", tmp_path / "one", shard=300))


# Data of one's own


class Items(list[Tensor]):
    """A data set whose items are rows; one of them kills ranks."""

    killers: tuple[int, ...] = ()
    lives = 10**9

    def __getitem__(self, index: Any) -> Any:
        Items.lives -= 1
        if Items.lives < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def dataset() -> Items:
    return Items(torch.randn(31, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64).unbind())


def sampled(folder: Path, shuffle: bool, kind: str = "plain", lives: int = 10**9) -> bool:
    Items.lives = lives
    held = dataset()
    replicas, own = (1, 0) if kind == "tensor_parallel" else (dist.get_world_size(), dist.get_rank())
    sampler: Any = DistributedSampler(held, replicas, own, shuffle=shuffle, seed=4)
    loader: Any = DataLoader(held, batch_size=3, sampler=sampler)
    return bool(sonde.extract(MODELS[kind](), loader, SITES, folder, shard=3_000).complete)


def check_sampled(folder: Path) -> None:
    """Each item of the data set once, under its index."""
    store, wanted = sonde.open_tensors(folder), torch.stack(list(dataset()))
    assert store.complete
    assert sorted(store["item"][:].tolist()) == list(range(31))
    with torch.no_grad():
        rows = model().embed(wanted)  # type: ignore[misc]
    for item in range(31):
        torch.testing.assert_close(store.item(item)["embed:output"][0], rows[item], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_a_distributed_sampler(tmp_path: Path, shuffle: bool) -> None:
    """An item has its index in the data set, and one that the sampler repeats is stored once."""
    on_ranks(2, sampled, tmp_path / "t", shuffle, limit=LIMIT)
    check_sampled(tmp_path / "t")


@pytest.mark.parametrize("later", quick([1, 2, 3], 3))
def test_a_distributed_sampler_of_another_number_of_ranks(tmp_path: Path, later: int) -> None:
    """It goes on with what killed ranks have left, also where forwards need all ranks."""
    ended(on_ranks(2, sampled, tmp_path / "t", True, "plain", 12, check=False, limit=LIMIT))
    assert 0 < len(sonde.open_tensors(tmp_path / "t")["item"]) < 31
    on_ranks(later, sampled, tmp_path / "t", True, "fsdp" if later > 1 else "plain", limit=LIMIT)
    check_sampled(tmp_path / "t")


@pytest.mark.slow
def test_a_distributed_sampler_under_tensor_parallel(tmp_path: Path) -> None:
    on_ranks(2, sampled, tmp_path / "t", True, "tensor_parallel", limit=LIMIT)
    check_sampled(tmp_path / "t")


def by_ids(folder: Path, seed: int, own: bool, stop: int = 10**9, overlap: bool = False) -> bool:
    """Batches with ids, in an order of their own each time; to all ranks the same, or to each a share."""
    x, rank, size = torch.stack(list(dataset())), dist.get_rank(), dist.get_world_size()
    order = torch.randperm(31, generator=torch.Generator().manual_seed(seed))
    if overlap:
        order = order[: 31 - 31 % size]

    def batches() -> Iterator[dict[str, Any]]:
        mine = order.roll(-rank * overlap)[rank::size] if own else order
        for number, part in enumerate(mine.split(3)):
            if number == stop:
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
            yield {"x": x[part], "key": part}

    made = sonde.extract(model(), batches(), SITES, folder, order="key", shard=3_000)
    return bool(made.complete)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True], ids=["the same", "a share"])
def test_ids_say_which_items_are_stored(tmp_path: Path, own: bool) -> None:
    """In whatever order they come, on however many ranks."""
    ended(on_ranks(2, by_ids, tmp_path / "t", 0, own, 4, check=False, limit=LIMIT))
    assert 0 < len(sonde.open_tensors(tmp_path / "t")["item"]) < 31
    on_ranks(3, by_ids, tmp_path / "t", 1, own, limit=LIMIT)
    store = sonde.open_tensors(tmp_path / "t")
    ids = store["id"][:]
    assert store.complete
    assert sorted(ids.tolist()) == list(range(31))
    assert len(store["item"][:].unique()) == 31
    with torch.no_grad():
        rows = model().embed(torch.stack(list(dataset())))  # type: ignore[misc]
    torch.testing.assert_close(store["embed:output"][:], rows[ids], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_ids_that_come_on_several_ranks(tmp_path: Path) -> None:
    """The store is then not complete, whoever goes on, since an item would be there twice."""
    ranks = on_ranks(2, by_ids, tmp_path / "t", 0, True, 10**9, True, check=False, limit=LIMIT)
    assert all("15 items came on several ranks, and are stored several times" in str(rank.error) for rank in ranks)
    assert not sonde.open_tensors(tmp_path / "t").complete
    ranks = on_ranks(3, by_ids, tmp_path / "t", 0, False, check=False, limit=LIMIT)
    assert all("15 items came on several ranks" in str(rank.error) for rank in ranks)


# Without a disk


def streamed(kind: str) -> list[int] | str:
    torch.manual_seed(0)
    made = MODELS[kind]()
    try:
        rows = list(sonde.stream(made, data(), "head|embed", buffer=12 * (19 * 8 + 8), rows=3))
    except ArgumentError as error:
        return str(error)
    found = {name: torch.cat([part[name] for part in rows]) for name in rows[0]}
    x = torch.cat(data())
    with torch.no_grad():
        torch.testing.assert_close(found["head:output"], model()(x)[found["item"]], rtol=1e-12, atol=1e-12)
    return found["item"].tolist()


def test_ranks_share_a_stream(tmp_path: Path) -> None:
    """Each row comes once, on one rank; a model whose forwards need other ranks is refused."""
    shares = values(on_ranks(3, streamed, "plain", limit=LIMIT))
    assert sorted(item for share in shares for item in share) == list(range(sum(map(len, data()))))
    assert all(share != sorted(share) for share in shares)
    for kind in ("ddp", "fsdp"):
        assert all("model.module" in said for said in values(on_ranks(2, streamed, kind, limit=LIMIT)))


# What others write


def two_stores(folder: Path) -> str:
    """Two teams of two ranks, each with a model and a store of its own."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("team", "rank"))
    team = dist.get_rank() // 2
    store = sonde.extract(model(team), data(seed=team), SITES, folder / str(team), ranks=mesh["rank"])
    return str(store.path)


def test_a_group_of_ranks_fills_a_store(tmp_path: Path) -> None:
    on_ranks(4, two_stores, tmp_path, limit=LIMIT)
    for team in range(2):
        wanted = sonde.extract(model(team), data(seed=team), SITES, tmp_path / f"one{team}")
        check_equal(sonde.open_tensors(tmp_path / str(team)), wanted)


def config() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
    )


LLAMA = r"layers\.\d$|self_attn$|proj$|embed_tokens|lm_head|norm$"
NOT_WHOLE = r"o_proj$|down_proj$"  # whose inputs are parts


def llama(folder: Path, kind: str) -> str:
    from transformers import LlamaForCausalLM

    split = {"tp_plan": "auto"} if kind == "tensor parallel" else {}
    made = LlamaForCausalLM.from_pretrained(folder / "model", **split).eval()
    if kind == "FSDP2":
        for layer in made.model.layers:
            fully_shard(layer)
        fully_shard(made)
    batches = [{"input_ids": each["ids"], "attention_mask": each["attention_mask"]} for each in ragged(7)]
    given: dict[str, Any] = {"positions": "attention_mask", "columns": ("input_ids",), "shard": 20_000}
    store = sonde.extract(made, batches, LLAMA, folder / kind, **given)
    if kind == "tensor parallel":
        with pytest.raises(ArgumentError, match=r"o_proj:input\[0\]: the ranks of one model have different tensors"):
            sonde.extract(made, batches, NOT_WHOLE, folder / "refused", ports="input", **given)
    return str(store.complete)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "FSDP2", "tensor parallel"])
def test_transformers_on_ranks(tmp_path: Path, kind: str) -> None:
    """Llama, spread as transformers and torch do it; what split layers return is put together."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config()).save_pretrained(tmp_path / "model")
    ranks = on_ranks(2, llama, tmp_path, kind, limit=LIMIT, environ={"HF_HUB_OFFLINE": "1"}, check=False)
    assert values(ranks) == ["True", "True"], "\n".join(map(str, ranks))
    llama(tmp_path, "one")
    store, wanted = sonde.open_tensors(tmp_path / kind), sonde.open_tensors(tmp_path / "one")
    check_equal(store, wanted, 1e-5 if kind == "tensor parallel" else 1e-6)
    assert store.about["weights"] == wanted.about["weights"]


class Tokens(torch.utils.data.Dataset[Tensor]):
    def __len__(self) -> int:
        return 31

    def __getitem__(self, index: int) -> Tensor:
        return dataset()[index]


def with_workers(folder: Path) -> bool:
    held = Tokens()
    made = fsdp()
    loader = DataLoader(held, batch_size=3, sampler=DistributedSampler(held, shuffle=True, seed=4), num_workers=2)
    own = sonde.extract(made, loader, SITES, folder / "own")
    same = sonde.extract(made, DataLoader(held, batch_size=3, num_workers=2), SITES, folder / "same", dtype="int8")
    return bool(own.complete and same.complete)


@pytest.mark.slow
def test_loaders_with_workers_on_ranks(tmp_path: Path) -> None:
    on_ranks(2, with_workers, tmp_path, limit=LIMIT)
    check_sampled(tmp_path / "own")
    wanted = sonde.extract(model(), DataLoader(Tokens(), batch_size=3), SITES, tmp_path / "one", dtype="int8")
    check_equal(sonde.open_tensors(tmp_path / "same"), wanted, 1e-6)  # the scales are float32
    lost = sonde.open_tensors(tmp_path / "same").about["lost"]["head:output"]
    assert lost == pytest.approx(wanted.about["lost"]["head:output"])
