import pytest

from lingvo_moe.training import phases
from lingvo_moe.training.goodput import Goodput
from lingvo_moe.training.phases import Phases


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


def test_where_the_time_of_a_run_and_its_restart_went(tmp_path):
    """100 s: 10 starting, 44 in useful steps, and so on; a second save is never complete."""
    clock = Clock()
    run = Goodput(tmp_path / "goodput.json", clock, clock)
    now = Phases(run.enter)
    clock.seconds = 10
    now.enter(phases.STEPS)
    clock.seconds += 20
    with now.during(phases.INPUT):
        clock.seconds += 5
    clock.seconds += 24
    saved = run.save()  # at 59 s
    with now.during(phases.SAVING):
        clock.seconds += 1
    saved()
    clock.seconds += 20
    run.save()  # is never complete
    clock.seconds = 95  # killed some time before; started again
    again = Goodput(tmp_path / "goodput.json", clock, clock)
    clock.seconds = 100
    again.enter(phases.STEPS)
    seconds = {kind: round(100 * share, 6) for kind, share in again.shares().items() if share}
    assert seconds == {"starting": 15, "steps": 44, "input": 5, "stopped": 36}
    assert again.line() == (
        "Goodput 44.0 % of the wall clock in useful steps; stopped 36.0 %, starting 15.0 %, "
        "input 5.0 %"
    )
    again.end(finished=True)
    clock.seconds = 10_000
    found = Goodput(tmp_path / "goodput.json", clock, clock).shares()
    assert found["stopped"] == pytest.approx(0.36)


@pytest.mark.parametrize(("finished", "stopped"), [(True, 0.0), (False, 0.5)])
def test_the_time_after_a_run_counts_if_it_did_not_finish(tmp_path, finished, stopped):
    clock = Clock()
    run = Goodput(tmp_path / "goodput.json", clock, clock)
    run.enter(phases.STEPS)
    clock.seconds = 10
    run.end(finished)
    clock.seconds = 20
    shares = Goodput(tmp_path / "goodput.json", clock, clock).shares()
    assert (shares["steps"], shares["stopped"]) == (1 - stopped, stopped)
