import threading

from lingvo_moe.training.watchdog import Watchdog


def test_a_stall_is_reported_once_and_its_end_too():
    clock, lines = [0.0], []
    watchdog = Watchdog(60.0, lines.append, lambda: clock[0])
    watchdog.enter("waiting for the input")
    for clock[0] in (30.0, 59.0):
        watchdog.check()
    assert lines == []
    for clock[0] in (61.0, 90.0, 500.0):
        watchdog.check()
    (report,) = lines
    head, *traces = report.splitlines()
    assert head.startswith("warning: Training stalls: 61 s waiting for the input (train.stall_")
    assert "test_a_stall_is_reported_once_and_its_end_too" in "".join(traces)
    watchdog.enter("in step 8")
    assert lines[1:] == ["Training goes on after 500 s waiting for the input."]
    watchdog.enter("compiling", watched=False)
    clock[0] = 9000.0
    watchdog.check()
    assert len(lines) == 2


def test_after_a_block_the_phase_before_goes_on():
    clock, lines = [0.0], []
    watchdog = Watchdog(60.0, lines.append, lambda: clock[0])
    watchdog.enter("in step 8")
    with watchdog.during("compiling", watched=False):
        clock[0] = 100.0
        watchdog.check()
    clock[0] = 159.0
    watchdog.check()
    assert lines == []
    clock[0] = 161.0
    watchdog.check()
    assert lines[0].startswith("warning: Training stalls: 61 s in step 8 ")


def test_the_thread_sees_a_stall_and_shows_the_stacks_of_all_threads():
    reported, lines = threading.Event(), []

    def report(line):
        lines.append(line)
        reported.set()

    def read_from_a_dead_disk():
        assert reported.wait(60)

    reader = threading.Thread(target=read_from_a_dead_disk)
    with Watchdog(0.05, report) as watchdog:
        watchdog.enter("waiting for the input")
        reader.start()
        reader.join()
    assert "in read_from_a_dead_disk" in lines[0]


def test_without_seconds_nothing_is_watched():
    with Watchdog(None, print) as watchdog:
        watchdog.enter("in step 1")
    assert not watchdog._thread.is_alive()
