"""Loads hardware profiles: data sheet figures of a machine, and the fractions of them that work reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from streamrace.device.hardware.facts import fact, facts
from streamrace.device.hardware.kernels.gpu import GPUS
from streamrace.device.hardware.network import Fabric, Network
from streamrace.trace import untrusted

_PROFILES = Path(__file__).with_name("profiles")
_LEAST, _MOST = 1e-9, 1e9  # bounds of any figure of a machine, within which derived figures stay finite


class ProfileError(Exception):
    """A hardware profile that does not exist or is not complete."""


@dataclass(frozen=True)
class Profile:
    """A machine. Rates are per GPU, network rates per flow and per node."""

    name: str
    description: str
    tflops: float  # dense bf16 matrix multiplication, peak
    efficiency: float  # the fraction of the peak that large matrix multiplications reach
    memory_gbytes_per_s: float
    kernel_us: float  # duration of the shortest kernel
    launch_us: float  # host time of a launch
    synchronize_us: float  # host time of a blocking call in addition to the wait
    intra_node_gbits_per_s: float  # one way, per GPU
    inter_node_gbits_per_s: float  # one flow between nodes
    intra_node_latency_us: float
    inter_node_latency_us: float
    gpus_per_node: int = 8
    memory_gbytes: float = 80.0  # per GPU; GiB, as the makers count it
    node_gbits_per_s: float | None = None  # all flows of a node together; None: the sum of its network cards
    gpu: str | None = (
        None  # the GPU whose kernels are timed by shape (hardware/kernels); None: ``efficiency`` for all kernels
    )
    matmul_fraction: float | None = None  # of the peak, in a full wave of products; None: as measured on that GPU
    attention_fraction: float | None = None  # the same for flash attention on long sequences
    attention_backward_fraction: float | None = None
    memory_fraction: float | None = None  # of the memory's rate, in a large elementwise kernel
    call_ns: float | None = None  # host time of a call of one of the program's Python functions; None: they take none
    host_gbytes_per_s: float | None = None  # between pinned memory of the host and the GPU
    network: Network | None = None  # None: a collective is one ring, limited by its slowest link

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """Return a profile from ``dataclasses.asdict``, also of an earlier release. Raise TypeError or ValueError."""
        network = data.get("network")
        return cls(**{**data, "network": None if network is None else Network.of(network)})

    @property
    def fabric(self) -> Fabric | None:
        """Return the fabric that :class:`Network` describes, with this machine's rates, or None."""
        if self.network is None:
            return None
        return Fabric.of(
            self.network,
            within_gbits=self.intra_node_gbits_per_s,
            card_gbits=self.inter_node_gbits_per_s,
            node_gbits=self.node_gbits_per_s,
            gpus=self.gpus_per_node,
        )

    @property
    def capacity(self) -> int:
        """Return the bytes of memory of one GPU."""
        return round(self.memory_gbytes * (1 << 30))

    def flow_gbits_per_s(self, flows: int) -> float:
        """Return the Gbit/s that each of ``flows`` gets when they leave a node at the same time."""
        cards = self.network.nics if self.network else 1
        of_node = cards * self.inter_node_gbits_per_s if self.node_gbits_per_s is None else self.node_gbits_per_s
        return min(self.inter_node_gbits_per_s, of_node / flows)

    def on_host(self, processor: str) -> Profile:
        """Return the same machine with a host whose own code takes time: one of :func:`host_names`."""
        launch_us, call_ns = (fact(f"host.{processor}.{figure}") for figure in ("launch_us", "call_ns"))
        return replace(self, launch_us=launch_us, call_ns=call_ns)

    def on_network(self, gbits_per_s: float) -> Profile:
        """Return the same machine with one network card of this rate per node."""
        network = replace(self.network, nics=1) if self.network else None
        return replace(self, inter_node_gbits_per_s=gbits_per_s, node_gbits_per_s=None, network=network)


def host_names() -> list[str]:
    """Return the names of the processors on which the host's own code was measured."""
    return sorted({name.split(".")[1] for name in facts("host.")})


def profile_names() -> list[str]:
    """Return the names of the profiles that come with the project."""
    return sorted(path.stem for path in _PROFILES.glob("*.toml"))


def load_profile(name_or_file: str) -> Profile:
    """Load a profile by name, or from a user's TOML file. Raise :class:`ProfileError`."""
    is_file = name_or_file.endswith(".toml")
    path = Path(name_or_file) if is_file else _PROFILES / f"{name_or_file}.toml"
    missing_one = ProfileError(
        f"there is no hardware profile '{untrusted.shortened(name_or_file, 200)}': choose one of "
        f"{', '.join(profile_names())}, or name a .toml file"
    )
    if not is_file and name_or_file not in profile_names():  # a name must not be a path
        raise missing_one
    try:
        table = untrusted.read_toml(path)
    except FileNotFoundError:
        raise missing_one from None
    except OSError as error:
        raise ProfileError(f"hardware profile {path} cannot be read: {error.strerror or error}") from error
    except untrusted.Unreadable as error:
        raise ProfileError(f"hardware profile {path} cannot be read: {error}") from None
    types = {item.name: item.type for item in fields(Profile) if item.name != "name"}
    optional = {item.name for item in fields(Profile) if item.default is not MISSING}
    if missing := sorted(types.keys() - table.keys() - optional):
        raise ProfileError(f"hardware profile {path} lacks {', '.join(missing)}")
    if unknown := sorted(table.keys() - types.keys()):
        raise ProfileError(f"hardware profile {path} has unknown entries: {', '.join(unknown)}")
    for key, value in table.items():
        if key == "network":
            try:
                table[key] = Network.of(value if isinstance(value, dict) else {"": value})
            except ValueError as error:
                raise ProfileError(f"hardware profile {path}: {error}") from error
        elif str(types[key]).startswith("str"):
            if not isinstance(value, str):
                raise ProfileError(f"hardware profile {path}: {key} must be text, not {_shown(value)}")
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not _LEAST <= value <= _MOST:
            raise ProfileError(
                f"hardware profile {path}: {key} must be a number above 0, not {_shown(value)} (from {_LEAST:g} to "
                f"{_MOST:g})"
            )
    if table.get("gpu", GPUS[0]) not in GPUS:
        raise ProfileError(f"hardware profile {path}: gpu must be one of {', '.join(GPUS)}, not {_shown(table['gpu'])}")
    return Profile(name=path.stem, **table)


def _shown(value: object) -> str:
    return untrusted.shortened(repr(value))
