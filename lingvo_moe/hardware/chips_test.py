import pytest

from lingvo_moe.hardware.chips import find_hardware


def test_unknown_hardware():
    with pytest.raises(ValueError, match="tpu_v9"):
        find_hardware("tpu_v9")
