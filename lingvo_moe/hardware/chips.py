"""Speed and memory of accelerators, from their makers' papers and data sheets.

Units: FLOP/s, bytes, bytes/s, seconds, all per device; a device is what XLA calls one.
"""

import dataclasses

from lingvo_moe.hardware.links import Interconnect, Switched, Torus

GB, US = 1e9, 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The share of its peak that each resource reaches; one set for all models."""

    matmul: float = 0.7  # share of the peak FLOP/s, in parts of a step that are limited by compute
    memory: float = 0.4  # share of the memory's bandwidth, in parts that are limited by memory
    # share of the links' bandwidth, without overlap of communication and compute
    network: float = 0.15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of device."""

    description: str  # what one device is
    matmul: dict[str, float]  # activation dtype -> peak FLOP/s of matrix products
    memory: float  # bytes
    bandwidth: float  # bytes/s of the memory
    interconnect: Interconnect  # the links between devices
    # activation dtype -> bytes of an element in AllToAlls between matrix products. TPU compilers
    # send bfloat16, because the matrix unit rounds its operands to it.
    wire_bytes: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"float32": 4, "bfloat16": 2}
    )
    efficiency: Efficiency = Efficiency()  # the share of these peaks that programs reach


_TPU_WIRE = {"float32": 2, "bfloat16": 2}
# Makers do not publish it; a microsecond is assumed.
_TPU_HOP = 1 * US
# A step of a ring by NVLink in NCCL's own model (src/graph/tuning.cc); ten microseconds by network
# are assumed.
_GPU_HOPS = {"local_hop": 3.4 * US, "remote_hop": 10 * US}

HARDWARE = {
    # Jouppi et al. 2020, "A Domain-Specific Supercomputer for Training Deep Neural Networks", CACM
    # 63(7), table 3, a chip of two cores: 123 TFLOP/s bfloat16, 32 GiB, 900 GB/s, four links of
    # 656 Gbit/s per direction. The matrix unit multiplies bfloat16 only: at XLA's default precision
    # float32 operands are rounded to it, in one pass and so at the same peak (the chip's 4 TFLOP/s
    # of true float32 are the vector unit's).
    "tpu_v3": Hardware(
        description="a core of a TPU v3 chip, which has two",
        matmul={"float32": 61.5e12, "bfloat16": 61.5e12},
        memory=16 * 2**30,
        bandwidth=450 * GB,
        interconnect=Torus(dims=2, link=82 * GB, cores=2, hop=_TPU_HOP),
        wire_bytes=_TPU_WIRE,
    ),
    # Jouppi et al. 2023, "TPU v4", ISCA, table 4: 275 TFLOP/s, 32 GiB, 1200 GB/s, six links of
    # 50 GB/s a direction in a 3-D torus. Two cores, which programs see as one device.
    "tpu_v4": Hardware(
        description="a TPU v4 chip",
        matmul={"float32": 275e12, "bfloat16": 275e12},
        memory=32 * 2**30,
        bandwidth=1200 * GB,
        interconnect=Torus(dims=3, link=50 * GB, hop=_TPU_HOP),
        wire_bytes=_TPU_WIRE,
    ),
    # cloud.google.com/tpu/docs/v5p: 459 TFLOP/s, 95 GB, 2765 GB/s, 4800 Gbit/s of six links in a
    # 3-D torus, so 100 GB/s a link and direction.
    "tpu_v5p": Hardware(
        description="a TPU v5p chip",
        matmul={"float32": 459e12, "bfloat16": 459e12},
        memory=95 * GB,
        bandwidth=2765 * GB,
        interconnect=Torus(dims=3, link=100 * GB, hop=_TPU_HOP),
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
        interconnect=Switched(node=8, local=300 * GB, remote=25 * GB, **_GPU_HOPS),
    ),
    # NVIDIA H100 SXM data sheet, no sparsity: 989 TFLOP/s bfloat16, 495 TF32, 3350 GB/s, NVLink
    # 900 GB/s both directions together. DGX H100: a 400 Gbit/s adapter a GPU.
    "h100": Hardware(
        description="an NVIDIA H100 SXM, 80 GB, eight a node",
        matmul={"float32": 495e12, "bfloat16": 989e12},
        memory=80 * GB,
        bandwidth=3350 * GB,
        interconnect=Switched(node=8, local=450 * GB, remote=50 * GB, **_GPU_HOPS),
    ),
    # NVIDIA H200 SXM data sheet: the H100's processors with 141 GB at 4800 GB/s.
    "h200": Hardware(
        description="an NVIDIA H200 SXM, 141 GB, eight a node",
        matmul={"float32": 495e12, "bfloat16": 989e12},
        memory=141 * GB,
        bandwidth=4800 * GB,
        interconnect=Switched(node=8, local=450 * GB, remote=50 * GB, **_GPU_HOPS),
    ),
    # Two 256-bit fused multiply-adds a cycle (Intel's optimization manual, Haswell and later: 32
    # float32 FLOP) at 3 GHz; bfloat16 is emulated at that speed at best. A core's share of a common
    # server: 4 GB and 10 GB/s; an exchange both reads and writes. Hosts have 10 Gbit/s Ethernet. A
    # message takes about ten microseconds between threads, and fifty by TCP between hosts.
    "cpu": Hardware(
        description="one x86 core with AVX2, sixteen a host",
        matmul={"float32": 96e9, "bfloat16": 96e9},
        memory=4 * GB,
        bandwidth=10 * GB,
        interconnect=Switched(
            node=16,
            local=5 * GB,
            remote=1.25 * GB / 16,
            local_hop=10 * US,
            remote_hop=50 * US,
        ),
    ),
}


NAMES = f"one of {', '.join(HARDWARE)}"


def find_hardware(name: str) -> Hardware:
    """The hardware with this name. Raises ValueError: an unknown name."""
    if name not in HARDWARE:
        raise ValueError(f"Unknown hardware {name!r}; choose {NAMES}.")
    return HARDWARE[name]
