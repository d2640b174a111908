"""Waiting for jobs, with stand-ins for their processes."""

import pytest

from lingvo_moe.testing import jobs


class Job:
    """A process that has printed a text."""

    def __init__(self, printed, alive=True):
        self.printed, self.alive = printed, alive

    def errors(self):
        return self.printed

    def is_alive(self):
        return self.alive

    def kill(self):
        self.alive = False


@pytest.mark.parametrize(
    ("wait", "awaited", "running"),
    [
        (jobs.wait_for, "step 7/", [Job("step 7/"), Job("")]),
        (jobs.wait_for_lines, 2, [Job("one\nI0101 of TensorFlow\ntwo"), Job("")]),
        (jobs.wait_for, "step 7/", [Job(""), Job("", alive=False)]),
    ],
)
def test_waiting_ends_with_a_text_or_with_a_process(wait, awaited, running):
    """At once: with no time left it would raise TimeoutError and kill the jobs."""
    before = [job.is_alive() for job in running]
    wait(running, awaited, seconds=0)
    assert [job.is_alive() for job in running] == before


@pytest.mark.parametrize(
    ("wait", "awaited"), [(jobs.wait_for, "step 7/"), (jobs.wait_for_lines, 2)]
)
def test_waiting_has_a_time_limit_after_which_none_is_left_running(wait, awaited):
    running = [Job("step 6/"), Job("")]
    with pytest.raises(TimeoutError, match=f"after 0 s: .*{awaited}.*\nstep 6/"):
        wait(running, awaited, seconds=0)
    assert not any(job.is_alive() for job in running)
