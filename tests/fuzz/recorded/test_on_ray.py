"""A campaign on the workers of a Ray cluster: two of them, on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamrace.fuzz.campaign import campaign
from streamrace.fuzz.engines import EngineError, shares
from streamrace.fuzz.engines.rayed import on_ray
from streamrace.fuzz.subject import Subject

pytestmark = pytest.mark.ray
ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")


def command(*words: str) -> None:
    subprocess.run([str(Path(sys.executable).with_name("ray")), *words], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    command("start", "--head", "--num-cpus", "2", "--include-dashboard=false", "--disable-usage-stats")
    yield
    ray.shutdown()
    command("stop", "--force")


def test_without_a_cluster_it_says_how_to_start_one(recorded: Callable[[str], Path]) -> None:
    with pytest.raises(EngineError, match="ray start --head"):
        on_ray(recorded("none"))


def test_two_workers_execute_what_one_process_would(
    cluster: None, recorded: Callable[[str], Path], subject: Callable[[str], Subject], tmp_path: Path
) -> None:
    one, examples = subject("none"), 40
    explore = on_ray(recorded("none"))
    tried = list(explore(shares(examples, 2, None, seed=0)))
    assert {share.seed for share, _ in tried} == {0, 1}
    assert len(tried) == examples
    assert any(tried.verdict.diverged for _, tried in tried)
    for _, other in tried[:10]:
        assert one.run(other.deviations) == other.verdict
    found = campaign(
        one, examples=examples, database=tmp_path, elsewhere=lambda: explore(shares(examples, 2, None, seed=0))
    )
    assert found.smallest is not None
    assert found.minimal
    again = campaign(one, examples=1, database=tmp_path)
    assert again.from_database


def test_a_worker_that_fails_says_so(cluster: None, tmp_path: Path) -> None:
    (tmp_path / "rank0.trace").write_bytes(b"no trace")
    with pytest.raises(EngineError, match="worker of the Ray cluster failed"):
        list(on_ray(tmp_path)(shares(4, 2, None, seed=0)))
