import tensorflow as tf

from lingvo_moe.training.summaries import SummaryWriter


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
