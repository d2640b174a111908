"""A preparation of data that is interrupted."""

import pytest

from lingvo_moe.data.prepare import PrepareParams, prepare


def interrupt(corpus, output, params: PrepareParams, monkeypatch) -> None:
    """Prepares until the shards, and is then interrupted as by Ctrl-C; the pieces stay."""

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("lingvo_moe.data.prepare_pair.write_records", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(corpus, output, params)
