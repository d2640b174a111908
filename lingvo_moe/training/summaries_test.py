import tensorflow as tf

from lingvo_moe.training.summaries import SummaryWriter, read_scalars


def test_tensorflow_reads_the_events_back(tmp_path):
    writer = SummaryWriter(tmp_path / "events")
    writer.scalars(5, {"train/loss": 1.5, "train/tokens": 3})
    writer.scalars(6, {"train/loss": 1.25})
    writer.close()
    (path,) = (tmp_path / "events").iterdir()
    events = list(tf.compat.v1.train.summary_iterator(str(path)))
    assert events[0].file_version == "brain.Event:2"
    read = [(e.step, v.tag, v.simple_value) for e in events[1:] for v in e.summary.value]
    assert read == [(5, "train/loss", 1.5), (5, "train/tokens", 3.0), (6, "train/loss", 1.25)]


def test_after_a_cut_file_the_others_are_read(tmp_path):
    for step in (1, 2):
        writer = SummaryWriter(tmp_path)
        writer.scalars(step, {"train/loss": step})
        writer.scalars(step + 1, {"train/loss": step})
        writer.close()
    first = min(tmp_path.iterdir())
    first.write_bytes(first.read_bytes()[:-10])
    assert read_scalars(tmp_path) == {"train/loss": {1: 1, 2: 2, 3: 2}}
