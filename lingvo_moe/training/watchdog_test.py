import threading

from lingvo_moe.training import phases
from lingvo_moe.training.phases import Phases
from lingvo_moe.training.watchdog import Watchdog


def test_a_stall_is_reported_once_and_its_end_too():
    clock, lines = [0.0], []
    watchdog = Watchdog(60.0, lines.append, lambda: clock[0])
    now = Phases(watchdog.enter)
    now.enter(phases.STEPS)
    with now.during(phases.INPUT):
        for clock[0] in (30.0, 59.0):
            watchdog.check()
        assert lines == []
        for clock[0] in (61.0, 90.0, 500.0):
            watchdog.check()
        (report,) = lines
        head, *traces = report.splitlines()
        assert head.startswith("warning: Training stalls: 61 s waiting for the input (train.stall_")
        assert "test_a_stall_is_reported_once_and_its_end_too" in "".join(traces)
    assert lines[1:] == ["Training goes on after 500 s waiting for the input."]
    with now.during(phases.COMPILING):
        clock[0] = 9000.0
        watchdog.check()
    clock[0] = 9059.0
    watchdog.check()
    assert len(lines) == 2
    clock[0] = 9061.0
    watchdog.check()
    assert "61 s in a step" in lines[2]


def test_the_thread_sees_a_stall_and_shows_the_stacks_of_all_threads():
    reported, lines = threading.Event(), []

    def report(line):
        lines.append(line)
        reported.set()

    def read_from_a_dead_disk():
        assert reported.wait(60)

    reader = threading.Thread(target=read_from_a_dead_disk)
    with Watchdog(0.05, report) as watchdog:
        watchdog.enter(phases.INPUT)
        reader.start()
        reader.join()
    assert "in read_from_a_dead_disk" in lines[0]


def test_without_seconds_nothing_is_watched():
    with Watchdog(None, print) as watchdog:
        watchdog.enter(phases.STEPS)
    assert not watchdog._thread.is_alive()
