"""What accelerators can do, from their makers' papers and data sheets.

Units: FLOP/s, bytes, bytes/s, seconds, all per device; a device is what XLA calls one.
"""

import abc
import dataclasses

TB, GB = 1e12, 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Interconnect(abc.ABC):
    """How long devices take to exchange data, at the full speed of the wires."""

    @abc.abstractmethod
    def all_reduce_seconds(self, size: float, devices: int) -> float:
        """Summing an array of `size` bytes that each of `devices` holds."""

    @abc.abstractmethod
    def all_to_all_seconds(self, size: float, devices: int) -> float:
        """Each device sends `size` bytes in all, an equal share to each."""

    def all_gather_seconds(self, size: float, devices: int) -> float:
        """Every device ends with `size` bytes of which it held its share: half an AllReduce."""
        return self.all_reduce_seconds(size, devices) / 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Torus(Interconnect):
    """Chips in a grid whose edges wrap around, as square as may be.

    Attributes:
        dims: of the grid.
        link: bytes/s of one link in one direction; a chip has 2·dims of them.
        cores: devices of one chip, which share its links.
    """

    dims: int
    link: float
    cores: int = 1

    def all_reduce_seconds(self, size, devices):
        # Ring reduce-scatter, then all-gather, each sending (n-1)/n of the array, over all links at
        # once. The cores of a chip add theirs up before.
        chips = max(devices / self.cores, 1)
        return 2 * size * (1 - 1 / chips) / (2 * self.dims * self.link)

    def all_to_all_seconds(self, size, devices):
        # A cut across the longest side severs 2·chips/side links (it wraps). Half of the chips send
        # half of their data across: n/2 · s/2 bytes one way. So s·side/8/link: O(√D) in 2-D.
        chips = devices / self.cores
        if chips <= 1:
            return 0.0
        per_chip, side = size * self.cores, max(chips ** (1 / self.dims), 2)
        across = per_chip * side / (8 * self.link)
        out_of_a_chip = per_chip * (1 - 1 / chips) / (2 * self.dims * self.link)
        return max(across, out_of_a_chip)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Switched(Interconnect):
    """Nodes of devices behind a fast switch, and a slower network between nodes.

    Attributes:
        node: devices of a node.
        local: bytes/s of a device within its node, one direction.
        remote: bytes/s of a device's share of its node's network, one direction.
    """

    node: int
    local: float
    remote: float

    def all_reduce_seconds(self, size, devices):
        # Within the node first, then each device its share of the node's sum between nodes.
        near, nodes = min(devices, self.node), max(devices / self.node, 1)
        inside = 2 * size * (1 - 1 / near) / self.local
        return inside + 2 * size / near * (1 - 1 / nodes) / self.remote

    def all_to_all_seconds(self, size, devices):
        near = min(devices, self.node)
        return max(
            size * (near - 1) / devices / self.local,
            size * (devices - near) / devices / self.remote,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of device.

    Attributes:
        description: what one device is.
        matmul: activation dtype -> peak FLOP/s of matrix products.
        memory: bytes of it.
        bandwidth: of the memory, bytes/s.
        interconnect: between devices.
        wire_bytes: activation dtype -> bytes of an element in AllToAlls between matrix products;
            TPU compilers send what the matrix unit will round to bfloat16 as bfloat16.
    """

    description: str
    matmul: dict[str, float]
    memory: float
    bandwidth: float
    interconnect: Interconnect
    wire_bytes: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"float32": 4, "bfloat16": 2}
    )


_TPU_WIRE = {"float32": 2, "bfloat16": 2}

HARDWARE = {
    # Jouppi et al. 2020, "A Domain-Specific Supercomputer for Training Deep Neural Networks", CACM
    # 63(7), table 3, a chip of two cores: 123 TFLOP/s bfloat16, 32 GiB, 900 GB/s, four links of
    # 656 Gbit/s a direction. The matrix unit multiplies bfloat16 only: at XLA's default precision
    # float32 operands are rounded to it, in one pass and so at the same peak (the chip's 4 TFLOP/s
    # of true float32 are the vector unit's).
    "tpu_v3": Hardware(
        description="a core of a TPU v3 chip, which has two",
        matmul={"float32": 61.5e12, "bfloat16": 61.5e12},
        memory=16 * 2**30,
        bandwidth=450 * GB,
        interconnect=Torus(dims=2, link=82 * GB, cores=2),
        wire_bytes=_TPU_WIRE,
    ),
    # Jouppi et al. 2023, "TPU v4", ISCA, table 4: 275 TFLOP/s, 32 GiB, 1200 GB/s, six links of
    # 50 GB/s a direction in a 3-D torus. Two cores, which programs see as one device.
    "tpu_v4": Hardware(
        description="a TPU v4 chip",
        matmul={"float32": 275e12, "bfloat16": 275e12},
        memory=32 * 2**30,
        bandwidth=1200 * GB,
        interconnect=Torus(dims=3, link=50 * GB),
        wire_bytes=_TPU_WIRE,
    ),
    # cloud.google.com/tpu/docs/v5p: 459 TFLOP/s, 95 GB, 2765 GB/s, 4800 Gbit/s of six links in a
    # 3-D torus, so 100 GB/s a link and direction.
    "tpu_v5p": Hardware(
        description="a TPU v5p chip",
        matmul={"float32": 459e12, "bfloat16": 459e12},
        memory=95 * GB,
        bandwidth=2765 * GB,
        interconnect=Torus(dims=3, link=100 * GB),
        wire_bytes=_TPU_WIRE,
    ),
    # NVIDIA A100 80GB SXM data sheet: 312 TFLOP/s bfloat16, 156 TF32 (what TensorFlow makes of
    # float32 products), 2039 GB/s, NVLink 600 GB/s both directions together. DGX A100: a 200 Gbit/s
    # adapter a GPU.
    "a100": Hardware(
        description="an NVIDIA A100 SXM, 80 GB, eight a node",
        matmul={"float32": 156e12, "bfloat16": 312e12},
        memory=80 * GB,
        bandwidth=2039 * GB,
        interconnect=Switched(node=8, local=300 * GB, remote=25 * GB),
    ),
    # NVIDIA H100 SXM data sheet, no sparsity: 989 TFLOP/s bfloat16, 495 TF32, 3350 GB/s, NVLink
    # 900 GB/s both directions together. DGX H100: a 400 Gbit/s adapter a GPU.
    "h100": Hardware(
        description="an NVIDIA H100 SXM, 80 GB, eight a node",
        matmul={"float32": 495e12, "bfloat16": 989e12},
        memory=80 * GB,
        bandwidth=3350 * GB,
        interconnect=Switched(node=8, local=450 * GB, remote=50 * GB),
    ),
    # NVIDIA H200 SXM data sheet: the H100's processors with 141 GB at 4800 GB/s.
    "h200": Hardware(
        description="an NVIDIA H200 SXM, 141 GB, eight a node",
        matmul={"float32": 495e12, "bfloat16": 989e12},
        memory=141 * GB,
        bandwidth=4800 * GB,
        interconnect=Switched(node=8, local=450 * GB, remote=50 * GB),
    ),
    # Two 256-bit fused multiply-adds a cycle (Intel's optimization manual, Haswell and later: 32
    # float32 FLOP) at 3 GHz; bfloat16 is emulated at that speed at best. A core's share of a common
    # server: 4 GB, 10 GB/s. Several hosts by 10 Gbit/s Ethernet.
    "cpu": Hardware(
        description="one x86 core with AVX2, sixteen a host",
        matmul={"float32": 96e9, "bfloat16": 96e9},
        memory=4 * GB,
        bandwidth=10 * GB,
        interconnect=Switched(node=16, local=5 * GB, remote=1.25 * GB / 16),
    ),
}


def lookup(name: str) -> Hardware:
    """The hardware of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in HARDWARE:
        raise ValueError(f"Unknown hardware {name!r}; choose one of {', '.join(HARDWARE)}.")
    return HARDWARE[name]
