"""The models that micro_batches_test.py leaves out; each is compiled for eight devices."""

import pytest

from lingvo_moe.runtimes.micro_batches_test import FAST, MODELS, check_losses, check_sums

pytestmark = pytest.mark.slow
SLOW = sorted(set(MODELS) - set(FAST))


@pytest.mark.parametrize("name", SLOW)
def test_steps_are_those_of_one_device(name):
    check_losses(name)


@pytest.mark.parametrize("name", SLOW)
def test_gradients_are_summed_once_a_step(name):
    check_sums(name)
