import pytest

from lingvo_moe.training.process import ALONE, Process


def test_causes_of_failures():
    """A process prefers its own error; others name the process and its error."""
    process = Process(1, share=lambda text: ["", text, "disk full"])
    assert process.cause(None) == "process 2: disk full"
    assert process.cause(OSError("no memory")) == "no memory"
    assert process.cause(OSError()) == "OSError"
    assert Process(1).cause(None) == "another process failed, see its log"


def test_the_minimum_in_the_background():
    process = Process(1, minimum=None, share=lambda text: ["4", text, "-2"])
    assert process.background.minimum(3) == -2
    assert ALONE.background is ALONE


@pytest.mark.parametrize("index", [0, 1])
def test_warnings_of_a_process_whose_report_is_silent(index, capsys):
    taken = []
    Process(index).warns(taken.append)("it stalls")
    assert taken == ([] if index else ["it stalls"])
    assert capsys.readouterr().err == ("process 1: it stalls\n" if index else "")
