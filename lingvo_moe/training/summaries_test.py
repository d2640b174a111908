import io
import resource

import numpy as np
import tensorflow as tf
from PIL import Image

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


def test_a_picture_is_read_back_with_its_size(tmp_path):
    file = io.BytesIO()
    Image.fromarray(np.full((20, 300, 3), 7, np.uint8)).save(file, "png")
    writer = SummaryWriter(tmp_path, print)
    writer.image(4, "dev/experts/encoder/layer_01", file.getvalue())
    writer.close()
    (path,) = tmp_path.iterdir()
    *_, event = tf.compat.v1.train.summary_iterator(str(path))
    (value,) = event.summary.value
    assert (event.step, value.tag) == (4, "dev/experts/encoder/layer_01")
    assert (value.image.width, value.image.height) == (300, 20)
    assert tf.io.decode_png(value.image.encoded_image_string).shape == (20, 300, 3)


def test_a_full_disk_is_said_once_and_training_goes_on(tmp_path):
    """The kernel lets no file grow over 1000 bytes, which a picture of 5000 would."""
    lines = []
    writer = SummaryWriter(tmp_path, lines.append)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        writer.image(4, "dev/picture", bytes(5000))
        writer.scalars(5, {"train/loss": 1.5})
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (line,) = lines
    assert line.startswith(f"warning: Cannot write {tmp_path}/events.out.tfevents.")
    assert line.endswith("training continues without events for TensorBoard.")
