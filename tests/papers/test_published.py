"""The file of published figures: what is in it, what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers.studies.published_figures import PublishedError, clusters, published, read

_WHOLE = """
rows = [{ cluster = "here", model = "llama-2-7b", network = 100, quantity = "seconds", value = 2.0, setting = "one" }]
[clusters.here]
title = "a cluster"
hardware = "v100"
nodes = 2
gpus = 8
source = "a paper"
[settings.one]
title = "plain"
micro_batch = 4
frozen = ["*.bias"]
zero = { reduce_bucket_size = 1e7 }
"""


def test_every_row_has_a_source() -> None:
    assert {row.cluster for row in published()} == set(clusters())
    assert all(one.source for one in clusters().values())


def test_a_time_is_a_time_in_every_quantity() -> None:
    """40 TFLOPs per GPU, of a step of 80; 8 samples per second, of 32."""
    seconds, tflops, samples = (published(quantity=name)[0] for name in ("seconds", "tflops", "samples"))
    assert seconds.seconds(3.0, flops=1.0, samples=1) == 3.0
    assert tflops.seconds(40.0, flops=80e12, samples=1) == 2.0
    assert samples.seconds(8.0, flops=1.0, samples=32) == 4.0
    with pytest.raises(ValueError, match="says nothing of how long"):
        published(quantity="gain")[0].seconds(1.0, flops=1.0, samples=1)


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "figures.toml"
    file.write_text(_WHOLE, encoding="utf-8")
    places, trained, rows = read(file)
    assert (places["here"].nodes, rows[0].value, rows[0].ranged) == (2, 2.0, False)
    assert trained["one"].options == {"micro_batch": 4, "frozen": ("*.bias",)}
    assert trained["one"].zero == {"reduce_bucket_size": 1e7}


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        ('"seconds"', '"minutes"', "row 1: 'minutes' is no quantity: choose of seconds, "),
        ("value = 2.0", "value = 2.0, low = 3.0, high = 4.0", "not from low to high"),
        ("value = 2.0", "value = 0.0", "not above 0"),
        ('"here", model', '"there", model', "names a cluster or a setting that is not in the file"),
        ("network = 100", "net = 100", "row 1 has unknown entries: net"),
        ("nodes = 2", "", "cluster here is not complete"),
        ('title = "plain"', "", "setting one has no title"),
        ("[clusters.here]", "[clusters.here", "figures.toml cannot be read"),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(tmp_path: Path, was: str, now: str, told: str) -> None:
    file = tmp_path / "figures.toml"
    file.write_text(_WHOLE.replace(was, now, 1), encoding="utf-8")
    with pytest.raises(PublishedError, match=told):
        read(file)
