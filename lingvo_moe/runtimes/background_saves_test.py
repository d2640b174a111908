"""Two processes save in the background while their devices work. Runs itself as the two."""

import sys
from pathlib import Path

import numpy as np

from lingvo_moe.testing.devices import free_address, variables
from lingvo_moe.testing.forks import Fork, wait_for_all
from lingvo_moe.training.checkpoint import Best, Checkpointer
from lingvo_moe.training.saver import Saver

SAVES = 5


def _run(directory, failing="nobody"):
    address = free_address()
    forks = [
        Fork(__file__, str(directory), address, str(i), failing, variables=variables(1))
        for i in range(2)
    ]
    return wait_for_all(forks)


def test_all_checkpoints_are_whole_and_have_the_state_of_their_step(tmp_path):
    ended = _run(tmp_path)
    assert [fork.returncode for fork in ended] == [0, 0], ended[0].stderr[-2000:]
    checkpoints = Checkpointer(tmp_path)
    assert checkpoints.steps() == [3, 4, 5]
    for step in checkpoints.steps():
        weights = checkpoints.read(step).tensors["theta/w"]
        np.testing.assert_array_equal(weights, np.arange(8) + step)
    assert not list(tmp_path.glob("*partial*"))


def test_if_one_cannot_save_both_end(tmp_path):
    ended = _run(tmp_path, failing="1")
    assert [fork.returncode for fork in ended] == [1, 1]
    assert "the disk of process 1 is full" in ended[0].stderr + ended[1].stderr
    assert Checkpointer(tmp_path).steps() == [1]


def main(directory, address, index, failing):
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from lingvo_moe.runtimes.processes import join_processes

    with join_processes(address, int(index), 2) as process:
        split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
        one = np.arange(8.0, dtype=np.float32)
        state = jax.make_array_from_callback((8,), split, lambda piece: one[piece])
        step = jax.jit(lambda w: w + 1, donate_argnums=0)
        checkpoints = Checkpointer(Path(directory), process=process)
        checkpoints.resume()
        with Saver(checkpoints) as saver:
            for number in range(1, SAVES + 1):
                state = step(state)
                if index == failing and number == 2:
                    saver.wait()
                    Checkpointer._write = _fail
                saver.save(number, {"theta/w": state, "step": np.int64(number)}, Best())
                process.minimum(number)  # a collective of the devices
                state.block_until_ready()


def _fail(self, partial, tensors):
    raise OSError("the disk of process 1 is full")


if __name__ == "__main__":
    main(*sys.argv[1:])
