import pytest

from lingvo_moe.hardware.chips import HARDWARE
from lingvo_moe.hardware.links import Group, Switched, Torus, block, group
from lingvo_moe.sbp.types import Mesh

GRID = Torus(dims=2, link=10.0, cores=2)
NODES = Switched(node=4, local=10.0, remote=1.0)
MESH = Mesh(("data", "expert", "model"), (2, 4, 2))


def test_groups():
    assert group(MESH, ("model",)) == Group(((2, 1),)) == block(2)
    assert group(MESH, ("data", "model")) == Group(((2, 8), (2, 1)))
    outer = group(MESH, ("data", "expert"))
    assert (outer.devices, outer.extent) == (8, 16)
    # Places 0, 2, 4, 6, 8, … of the machine: two of them among the first four.
    assert [outer.within(n) for n in (1, 2, 4, 8, 16)] == [1, 1, 2, 4, 8]
    assert group(Mesh(("data", "model"), (1, 2)), ("data",)) == block(1) == Group(())


def test_torus_all_to_all_by_hand():
    # 32 cores on 16 chips, 4 x 4. A chip sends 2 · 80 = 160. Half of the chips send half of theirs
    # across the middle: 8 · 80 = 640 one way, over 2 · 4 links of 10: 8 s.
    assert GRID.all_to_all_seconds(80.0, block(32)) == pytest.approx(8.0)
    assert GRID.all_to_all_seconds(80.0, block(2)) == 0.0  # within a chip
    # Eight groups of four that are spread over the same 4 x 4 chips cross the same middle.
    assert GRID.all_to_all_seconds(80.0, Group(((4, 8),))) == pytest.approx(8.0)


def test_torus_all_to_all_grows_with_the_root_of_the_devices():
    # GShard section 3.3 measures 9x from 16 to 2048; √128 = 11.3.
    ratio = GRID.all_to_all_seconds(1.0, block(2048)) / GRID.all_to_all_seconds(1.0, block(16))
    assert ratio == pytest.approx(128**0.5)
    cube = Torus(dims=3, link=10.0)
    ratio = cube.all_to_all_seconds(1.0, block(4096)) / cube.all_to_all_seconds(1.0, block(512))
    assert ratio == pytest.approx(2.0)


def test_torus_rings_of_a_group_with_gaps():
    # Four chips of which each has two cores of different groups: two arrays of 80 there and back,
    # 3/4 of each, over the two links of one dimension: 2 · 80 · 2 · 3/4 / 20 = 12 s.
    assert GRID.all_reduce_seconds(80.0, Group(((4, 8),))) == pytest.approx(12.0)
    # With both cores of a chip in one group, they are one array.
    assert GRID.all_reduce_seconds(80.0, Group(((4, 8), (2, 1)))) == pytest.approx(6.0)


def test_torus_hops():
    slow = Torus(dims=2, link=1e30, hop=1.0)
    # 4 x 4 chips: three hops along each dimension, there and back; an exchange goes two each.
    assert slow.all_reduce_seconds(1.0, block(16)) == pytest.approx(2 * 2 * 3)
    assert slow.all_to_all_seconds(1.0, block(16)) == pytest.approx(2 * 2)
    assert slow.seconds("reduce-scatter", 1.0, block(16)) == pytest.approx(2 * 3)


def test_switched_by_hand():
    # Inside: 2 · 40 · 3/4 / 10 = 6. Each device then sums its quarter over two nodes: 2·10·1/2 / 1.
    assert NODES.all_reduce_seconds(40.0, block(8)) == pytest.approx(6 + 10)
    assert NODES.all_reduce_seconds(40.0, block(4)) == pytest.approx(6)
    # Two devices of different nodes: all 40 bytes through each one's own share of the network.
    assert NODES.all_reduce_seconds(40.0, Group(((2, 4),))) == pytest.approx(40)
    # Four of eight devices are remote, three near: 40/8 · 4 / 1 against 40/8 · 3 / 10.
    assert NODES.all_to_all_seconds(40.0, block(8)) == pytest.approx(20)
    assert NODES.all_to_all_seconds(40.0, block(4)) == pytest.approx(3)


def test_switched_hops():
    far = Switched(node=4, local=1e30, remote=1e30, local_hop=1.0, remote_hop=10.0)
    # A ring of four there and back, a tree of eight nodes up and down.
    assert far.all_reduce_seconds(1.0, block(32)) == pytest.approx(2 * 3 + 2 * 3 * 10)
    assert far.all_to_all_seconds(1.0, block(32)) == pytest.approx(7 * 10)
    assert far.all_to_all_seconds(1.0, block(4)) == pytest.approx(3)


def test_a_device_alone_waits_for_nobody():
    for hardware in HARDWARE.values():
        for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
            assert hardware.interconnect.seconds(kind, 1e9, block(1)) == 0.0
