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
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "lingvo_moe_requests", "Requests answered.", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "lingvo_moe_request_seconds",
            "From a request to its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.batches = Histogram(
            "lingvo_moe_batch_sentences",
            "Sentences translated together.",
            ["model"],
            buckets=_SIZES,
            registry=registry,
        )
        self.batch_seconds = Histogram(
            "lingvo_moe_batch_seconds",
            "Seconds of a batch.",
            ["model"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.tokens = Counter(
            "lingvo_moe_source_tokens", "Source tokens translated.", ["model"], registry=registry
        )
        self._waiting = Gauge(
            "lingvo_moe_waiting_sentences", "Sentences in the queue.", ["model"], registry=registry
        )

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
