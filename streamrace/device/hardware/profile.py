"""A machine: what its makers say of it, and what work reaches of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from streamrace.device.hardware.kernels.gpu import GPUS
from streamrace.device.hardware.network import Fabric, Network
from streamrace.trace import untrusted

_PROFILES = Path(__file__).with_name("profiles")
_LEAST, _MOST = 1e-9, 1e9  # of any figure of a machine; what follows from those in between can be computed with


class ProfileError(Exception):
    """A hardware profile that does not exist or is not complete."""


@dataclass(frozen=True)
class Profile:
    """A machine. Rates are per GPU, network per flow and per node."""

    name: str
    description: str
    tflops: float  # dense bf16 matrix multiplication, peak
    efficiency: float  # the part of the peak that large matrix multiplications reach
    memory_gbytes_per_s: float
    kernel_us: float  # the shortest kernel
    launch_us: float  # what a launch costs the host
    synchronize_us: float  # what a blocking call costs the host beyond the wait
    intra_node_gbits_per_s: float  # one way, per GPU
    inter_node_gbits_per_s: float  # one flow between nodes
    intra_node_latency_us: float
    inter_node_latency_us: float
    gpus_per_node: int = 8
    memory_gbytes: float = 80.0  # per GPU; GiB, as the makers count it
    node_gbits_per_s: float | None = None  # all flows of a node together; None: one network card, what one flow gets
    gpu: str | None = (
        None  # whose kernels are timed by shape (streamrace/device/hardware/kernels); None: ``efficiency`` for all
    )
    matmul_fraction: float | None = None  # of the peak, in a full wave of products; None: as measured of that GPU
    attention_fraction: float | None = None  # likewise of flash attention, long sequences
    attention_backward_fraction: float | None = None
    memory_fraction: float | None = None  # of the memory's rate, in a large elementwise kernel
    host_gbytes_per_s: float | None = None  # between pinned memory of the host and the GPU
    network: Network | None = None  # None: collectives are one ring, held up by its slowest link

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """What ``dataclasses.asdict`` gave, of an earlier release as well. Raises TypeError or ValueError otherwise."""
        network = data.get("network")
        return cls(**{**data, "network": None if network is None else Network.of(network)})

    @property
    def fabric(self) -> Fabric | None:
        """What :class:`Network` describes, with this machine's rates."""
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
        """Bytes of one GPU."""
        return round(self.memory_gbytes * (1 << 30))

    def flow_gbits_per_s(self, flows: int) -> float:
        """What each of ``flows`` that leave a node at once gets, Gbit/s."""
        cards = self.network.nics if self.network else 1
        of_node = cards * self.inter_node_gbits_per_s if self.node_gbits_per_s is None else self.node_gbits_per_s
        return min(self.inter_node_gbits_per_s, of_node / flows)

    def on_network(self, gbits_per_s: float) -> Profile:
        """The same machine, where a node has one network card of this rate."""
        network = replace(self.network, nics=1) if self.network else None
        return replace(self, inter_node_gbits_per_s=gbits_per_s, node_gbits_per_s=None, network=network)


def profile_names() -> list[str]:
    """The profiles that come with the project."""
    return sorted(path.stem for path in _PROFILES.glob("*.toml"))


def load_profile(name_or_file: str) -> Profile:
    """A profile by name, or from a TOML file of one's own. Raises :class:`ProfileError`."""
    own = name_or_file.endswith(".toml")
    path = Path(name_or_file) if own else _PROFILES / f"{name_or_file}.toml"
    missing_one = ProfileError(
        f"there is no hardware profile '{untrusted.shortened(name_or_file, 200)}': choose one of "
        f"{', '.join(profile_names())}, or name a .toml file"
    )
    if not own and name_or_file not in profile_names():  # a name is no path
        raise missing_one
    try:
        table = untrusted.read_toml(path)
    except FileNotFoundError:
        raise missing_one from None
    except OSError as error:
        raise ProfileError(f"hardware profile {path} cannot be read: {error.strerror or error}") from error
    except untrusted.Unreadable as error:
        raise ProfileError(f"hardware profile {path} cannot be read: {error}") from None
    wanted = {item.name: item.type for item in fields(Profile) if item.name != "name"}
    optional = {item.name for item in fields(Profile) if item.default is not MISSING}
    if missing := sorted(wanted.keys() - table.keys() - optional):
        raise ProfileError(f"hardware profile {path} lacks {', '.join(missing)}")
    if unknown := sorted(table.keys() - wanted.keys()):
        raise ProfileError(f"hardware profile {path} has unknown entries: {', '.join(unknown)}")
    for key, value in table.items():
        if key == "network":
            try:
                table[key] = Network.of(value if isinstance(value, dict) else {"": value})
            except ValueError as error:
                raise ProfileError(f"hardware profile {path}: {error}") from error
        elif str(wanted[key]).startswith("str"):
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
