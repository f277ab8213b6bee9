"""Checkpoints that are torn, damaged or not what one thinks: said in one sentence, and nothing is lost by it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from streamrace.device.device import Device
from streamrace.device.ranks.cluster import Rank, RankFailed
from streamrace.scenarios.sharding import checkpoint
from streamrace.scenarios.sharding.checkpoint import load, save
from streamrace.scenarios.sharding.checkpoint_index import INDEX, newest, of_step, read, sha256
from streamrace.scenarios.sharding.engine import ShardedEngine
from streamrace.scenarios.sharding.strategy import ShardingError, strategy
from tests.sharding.interrupted import alone, begun, bits, go_on
from tests.sharding.ranks import together
from tests.sharding.training import Net, adamw, engine, net, train, values

FROZEN = ("embedding", "blocks.0.up")


def dies(where: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, a rank that saves is killed: with half a file written, or with all but the renaming done."""

    def arm() -> None:
        def writing(tensors: dict[str, Tensor], path: Path) -> None:
            path.write_bytes(b"half of it")
            os.kill(os.getpid(), signal.SIGKILL)

        def syncing(path: Path) -> None:
            if path.name == INDEX:
                os.kill(os.getpid(), signal.SIGKILL)

        if where == "file":
            monkeypatch.setattr(checkpoint, "save_file", writing)
        else:
            monkeypatch.setattr(checkpoint, "_sync", syncing)

    return arm


@pytest.mark.parametrize(("rank", "where"), [(1, "file"), (0, "index")])
def test_a_save_that_is_killed_half_way_leaves_the_last_checkpoint(
    rank: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = dies(where, monkeypatch)

    def program(me: Rank, device: Device | None) -> None:
        made = begun(me.world, device, "GGG", 1)
        for step in (1, 2, 3):
            go_on(made, steps=1)
            if step == 3 and me.rank == rank:
                arm()
            save(made, of_step(tmp_path, step), step)

    with pytest.raises(RankFailed, match=f"rank {rank} was killed by SIGKILL"):
        together(2, program, tmp_path / "ranks", simulated=False)
    assert newest(tmp_path) == of_step(tmp_path, 2)
    made, whole = begun(1, None, "NNN", 1), begun(1, None, "NNN", 1)
    assert load(made, newest(tmp_path)) == 2
    go_on(made, steps=1)
    go_on(whole, steps=3)
    assert bits(values(made)) == bits(values(whole))
    save(made, of_step(tmp_path, 3), 3)  # what is left of the other does not stand in the way
    assert load(begun(1, None, "NNN", 1), newest(tmp_path)) == 3


def test_what_fails_on_one_rank_fails_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "damaged"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def program(me: Rank, device: Device | None) -> list[str]:
        made = begun(me.world, device, "GGG", 1)
        said = []
        save(made, damaged, 0)
        if me.rank == 1:
            flip(damaged / "rank-1.safetensors")
            monkeypatch.setattr(checkpoint, "save_file", full)
        for work in (lambda: save(made, tmp_path / "step-1", 1), lambda: load(made, damaged)):
            with pytest.raises(ShardingError) as error:
                work()
            said.append(str(error.value))
        return said

    first, second = together(2, program, tmp_path / "ranks", simulated=False)
    assert first[0] == f"rank 1 could not write the checkpoint {tmp_path / 'step-1'}: its own message says why"
    assert second[0] == f"cannot write the checkpoint {tmp_path / 'step-1'}: [Errno 28] No space left on device"
    assert not (tmp_path / "step-1").exists()
    assert first[1] == f"rank 1 could not check the checkpoint {damaged}: its own message says why"
    assert second[1] == f"{damaged} is damaged: rank-1.safetensors is not as it was written, its checksum is another"


def flip(path: Path) -> None:
    """One bit, in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change(folder: Path, old: str, new: str) -> None:
    path = folder / INDEX
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def rewrite(folder: Path, **fields: Any) -> None:
    """An index with another field, and a checksum that fits."""
    (folder / INDEX).write_text(read(folder).model_copy(update=fields).text())


def misplace(folder: Path) -> None:
    """The index says of a parameter that it is longer, and of its file too."""
    index = read(folder)
    longer = index.parameters["head.bias"].model_copy(update={"shape": (6,)})
    file = index.files["rank-0.safetensors"]
    holds = file.model_copy(update={"holds": {**file.holds, "head.bias": (0, 6)}})
    rewrite(folder, parameters={**index.parameters, "head.bias": longer}, files={"rank-0.safetensors": holds})


FILE = "rank-0.safetensors"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda at: flip(at / FILE), f"{FILE} is not as it was written, its checksum is another"),
    "a short file": (lambda at: os.truncate(at / FILE, 1000), f"{FILE} is not as it was written, it has 1000 bytes"),
    "a missing file": (lambda at: (at / FILE).unlink(), f"{FILE} cannot be read (No such file or directory)"),
    "another step": (lambda at: change(at, '"step": 2', '"step": 3'), f"{INDEX} is damaged: its checksum is another"),
    "half an index": (lambda at: os.truncate(at / INDEX, 500), "is not that of a sharded training checkpoint"),
    "another index": (lambda at: (at / INDEX).write_text("{}"), "is not that of a sharded training checkpoint"),
    "no index": (lambda at: (at / INDEX).unlink(), "is no checkpoint, it holds something else: give a folder with a"),
    "no folder": (shutil.rmtree, "is no checkpoint, it does not exist"),
    "a newer one": (
        lambda at: change(at, '"version": 1', '"more": [], "version": 2'),
        "of version 2, and only those up to 1 can be read here: read it with the release that wrote it",
    ),
    "a file elsewhere": (lambda at: change(at, f'"{FILE}"', f'"../{FILE}"'), "is damaged: files"),
    "a gap": (lambda at: rewrite(at, files={}), "its files do not hold each element of embedding.weight once"),
    "a longer parameter": (misplace, "is of another model: its parameter head.bias has the shape 6, and the model's 5"),
}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one rank."""
    folder = tmp_path_factory.mktemp("one") / "step-2"
    made = begun(1, None, "NNN", 1)
    go_on(made, steps=2)
    save(made, folder, 2)
    return folder


def refused(made: ShardedEngine, folder: Path) -> str:
    before = bits(values(made))
    with pytest.raises(ShardingError) as error:
        load(made, folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)
    assert bits(values(made)) == before
    return str(error.value)


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_refused(damage: str, one: Path, tmp_path: Path) -> None:
    folder = tmp_path / "step-2"
    shutil.copytree(one, folder)
    do, sentence = DAMAGES[damage]
    do(folder)
    assert sentence in refused(begun(1, None, "NNN", 1), folder)


def test_a_file_that_is_not_what_the_index_says_is_refused(one: Path, tmp_path: Path) -> None:
    """It fits its checksum: somebody put the two together."""
    folder = tmp_path / "step-2"
    shutil.copytree(one, folder)
    tensors = {
        name: torch.zeros(3) if name == "value/head.bias" else one for name, one in load_file(one / FILE).items()
    }
    save_file(tensors, folder / FILE)
    put_together(folder)
    with pytest.raises(ShardingError, match=f"{FILE} has value/head.bias of another size than its {INDEX} says"):
        load(begun(1, None, "NNN", 1), folder)
    del tensors["value/head.bias"]
    save_file(tensors, folder / FILE)
    put_together(folder)
    with pytest.raises(
        ShardingError, match="cannot read the checkpoint .*: File does not contain tensor value/head.bias"
    ):
        load(begun(1, None, "NNN", 1), folder)


def put_together(folder: Path) -> None:
    """The index takes the file as it is."""
    update = {"size": (folder / FILE).stat().st_size, "sha256": sha256(folder / FILE)}
    rewrite(folder, files={FILE: read(folder).files[FILE].model_copy(update=update)})


def test_another_model_is_refused_by_its_first_parameter(one: Path) -> None:
    def of(made: Net, **how: Any) -> str:
        said = refused(engine(made, strategy("NNN"), alone(), None, **how), one)
        return said.removeprefix(f"{one} is of another model: ")

    wider = net()
    wider.head = nn.Linear(7, 6)
    assert of(wider) == "its parameter head.weight has the shape 5 x 7, and the model's 6 x 7"
    assert of(net(frozen=FROZEN)) == "its parameter embedding.weight is trained, and the model's is frozen"
    assert of(net(), dtype=torch.bfloat16) == "its parameter embedding.weight is float32, and the model's bfloat16"
    assert of(net(blocks=3)) == "it has no parameter blocks.2.norm.weight"
    assert of(net(blocks=1)) == "it has a parameter blocks.1.norm.weight, which the model has not"


def test_another_optimizer_is_refused(one: Path) -> None:
    made = engine(net(), strategy("NNN"), alone(), None, optimizer=adamw)
    assert refused(made, one) == f"{one} has the state of the optimizer SGD, with which AdamW cannot go on"


def test_an_engine_that_has_trained_is_refused(one: Path) -> None:
    made = begun(1, None, "NNN", 1)
    load(made, one)
    with pytest.raises(ShardingError, match="a checkpoint is loaded before training, and 2 steps are done"):
        load(made, one)


def test_what_is_there_is_not_overwritten(one: Path, tmp_path: Path) -> None:
    made = begun(1, None, "NNN", 1)
    with pytest.raises(ShardingError, match="holds a checkpoint already: save to a folder of its own"):
        save(made, one, 2)
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ShardingError, match="holds something else: save to a folder of its own"):
        save(made, tmp_path, 2)
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.txt"]


def test_what_would_be_lost_is_not_saved(tmp_path: Path) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            self.state[self.param_groups[0]["params"][0]]["history"] = [1, 2, 3]

    odd = engine(net(), strategy("NNN"), alone(), None, optimizer=lambda those: Odd(those, lr=0.1))
    train(odd, 0, steps=1)
    with pytest.raises(ShardingError, match="the optimizer's state 'history' would be lost"):
        save(odd, tmp_path / "odd", 1)
    counting = net()
    counting.register_buffer("seen", torch.zeros(3))
    with pytest.raises(ShardingError, match="the model's buffer seen would be lost: only parameters are saved"):
        save(engine(counting, strategy("NNN"), alone(), None), tmp_path / "odd", 1)
    assert not (tmp_path / "odd").exists()


def test_before_the_first_step_there_is_no_state_and_that_is_saved_too(tmp_path: Path) -> None:
    save(begun(1, None, "NNN", 1), tmp_path / "step-0", 0)
    made, whole = begun(1, None, "GGG", 1), begun(1, None, "GGG", 1)
    assert load(made, tmp_path / "step-0") == 0
    for trained in (made, whole):
        go_on(trained, steps=1)
    assert bits(values(made)) == bits(values(whole))
