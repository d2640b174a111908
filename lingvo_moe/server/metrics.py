"""Metrics of the server for Prometheus."""

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one server.

    Attributes:
        requests: by path and status; 499 if the client disconnected before the answer.
        seconds: of requests, by path.
        batches: sentences of a batch, by model.
        tokens: source tokens translated, by model.
    """

    def __init__(self):
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

        def made(kind, name, text, *labels, **options):
            return kind(f"lingvo_moe_{name}", text, labels, registry=self._registry, **options)

        seconds = {"buckets": _SECONDS}
        self.requests = made(Counter, "requests", "Requests answered.", "path", "status")
        self.seconds = made(
            Histogram, "request_seconds", "From a request to its answer.", "path", **seconds
        )
        self.batches = made(
            Histogram, "batch_sentences", "Sentences translated together.", "model", buckets=_SIZES
        )
        self.batch_seconds = made(
            Histogram, "batch_seconds", "Seconds of a batch.", "model", **seconds
        )
        self.tokens = made(Counter, "source_tokens", "Source tokens translated.", "model")
        self._waiting = made(Gauge, "waiting_sentences", "Sentences in the queue.", "model")

    def watch_queue(self, model: str, waiting: Callable[[], int]) -> None:
        """Adds the length of a model's queue, which is read for each scrape."""
        self._waiting.labels(model).set_function(waiting)

    def observe_batch(self, model: str, sentences: int, seconds: float) -> None:
        """Counts a batch."""
        self.batches.labels(model).observe(sentences)
        self.batch_seconds.labels(model).observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self._registry)
