import pytest

from lingvo_moe.planning.hardware import HARDWARE, Switched, Torus, lookup

GRID = Torus(dims=2, link=10.0, cores=2)
NODES = Switched(node=4, local=10.0, remote=1.0)


def test_torus_all_to_all_by_hand():
    # 32 cores on 16 chips, 4 x 4. A chip sends 2 · 80 = 160. Half of the chips send half of theirs
    # across the middle: 8 · 80 = 640 one way, over 2 · 4 links of 10: 8 s.
    assert GRID.all_to_all_seconds(80.0, 32) == pytest.approx(8.0)
    assert GRID.all_to_all_seconds(80.0, 2) == 0.0  # within a chip


def test_torus_all_to_all_grows_with_the_root_of_the_devices():
    # GShard section 3.3 measures 9x from 16 to 2048; √128 = 11.3.
    ratio = GRID.all_to_all_seconds(1.0, 2048) / GRID.all_to_all_seconds(1.0, 16)
    assert ratio == pytest.approx(128**0.5)
    cube = Torus(dims=3, link=10.0)
    ratio = cube.all_to_all_seconds(1.0, 4096) / cube.all_to_all_seconds(1.0, 512)
    assert ratio == pytest.approx(2.0)


def test_torus_all_reduce_does_not():
    # 80 bytes there and back over four links of 10: 4 s for many chips, 15/16 of it for 16.
    assert GRID.all_reduce_seconds(80.0, 32) == pytest.approx(4 * 15 / 16)
    assert GRID.all_reduce_seconds(80.0, 2048) == pytest.approx(4, rel=0.01)
    assert GRID.all_gather_seconds(80.0, 2048) == pytest.approx(2, rel=0.01)


def test_switched_by_hand():
    # Inside: 2 · 40 · 3/4 / 10 = 6. Each device then sums its quarter over two nodes: 2·10·1/2 / 1.
    assert NODES.all_reduce_seconds(40.0, 8) == pytest.approx(6 + 10)
    assert NODES.all_reduce_seconds(40.0, 4) == pytest.approx(6)
    # Four of eight devices are remote, three near: 40/8 · 4 / 1 against 40/8 · 3 / 10.
    assert NODES.all_to_all_seconds(40.0, 8) == pytest.approx(20)
    assert NODES.all_to_all_seconds(40.0, 4) == pytest.approx(3)


def test_a_device_alone_waits_for_nobody():
    for hardware in HARDWARE.values():
        assert hardware.interconnect.all_reduce_seconds(1e9, 1) == 0.0
        assert hardware.interconnect.all_to_all_seconds(1e9, 1) == 0.0


def test_unknown_hardware():
    with pytest.raises(ValueError, match="Unknown hardware 'tpu_v9'; choose one of tpu_v3, tpu_v4"):
        lookup("tpu_v9")
