from lingvo_moe.system.progress import Progress


def lines_of(times, counts, **fields):
    """What is reported when `counts` are done at `times`, in seconds; it begins at 0."""
    clock, lines = iter([0.0, *times]), []
    progress = Progress(lines.append, clock=lambda: next(clock), **fields)
    for count in counts:
        progress(count)
    return lines


def test_speed_and_time_left():
    """40 sentences in 10 s are 4 a second; the other 4,000 - 40 take 990 s."""
    assert lines_of([5, 10, 12], [20, 20, 5], total=4000) == [
        "40 of 4,000 sentences  4.0 sentences/s  ETA 0:16:30"
    ]


def test_what_an_earlier_run_did_is_no_speed_of_this_one():
    """20 in 10 s, 80 are left."""
    assert lines_of([10], [20], total=1000, done=900) == [
        "920 of 1,000 sentences  2.0 sentences/s  ETA 0:00:40"
    ]
    assert lines_of([10], [0], total=1000) == ["0 of 1,000 sentences  0.0 sentences/s"]


def test_the_last_line_has_the_time_of_this_run():
    assert lines_of([10, 15], [60, 20], total=100, done=20) == [
        "80 of 100 sentences  6.0 sentences/s  ETA 0:00:03",
        "100 of 100 sentences  5.3 sentences/s  in 0:00:15",
    ]
