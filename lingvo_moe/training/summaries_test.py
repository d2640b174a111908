import resource

import tensorflow as tf

from lingvo_moe.training.summaries import SummaryWriter


def test_tensorflow_reads_the_events_back(tmp_path):
    writer = SummaryWriter(tmp_path / "events", print)
    writer.scalars(5, {"train/loss": 1.5, "train/tokens": 3})
    writer.scalars(6, {"train/loss": 1.25})
    writer.close()
    (path,) = (tmp_path / "events").iterdir()
    events = list(tf.compat.v1.train.summary_iterator(str(path)))
    assert events[0].file_version == "brain.Event:2"
    read = [(e.step, v.tag, v.simple_value) for e in events[1:] for v in e.summary.value]
    assert read == [(5, "train/loss", 1.5), (5, "train/tokens", 3.0), (6, "train/loss", 1.25)]


def test_a_full_disk_is_said_once_and_training_goes_on(tmp_path):
    """The kernel lets no file grow over 1000 bytes, which the events of 200 tags would."""
    lines = []
    writer = SummaryWriter(tmp_path, lines.append)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        writer.scalars(4, {f"train/loss/{i}": 1.0 for i in range(200)})
        writer.scalars(5, {"train/loss": 1.5})
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (line,) = lines
    assert line.startswith(f"warning: Cannot write {tmp_path}/events.out.tfevents.")
    assert line.endswith("training continues without events for TensorBoard.")
