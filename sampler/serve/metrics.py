"""What the server counts, for Prometheus: GET /metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sampler.params import Completion

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counters of one server. Each may be changed from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests by the status of the answer", "status")
        self.rows = self._counter("rows", "Rows that have ended, by how", "reason")
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts of ended rows")
        self.generated_tokens = self._counter(
            "generated_tokens", "Tokens that ended rows were given"
        )
        self.forced_tokens = self._counter(
            "forced_tokens", "Those the grammar left no choice about"
        )
        self.hurried_tokens = self._counter(
            "hurried_tokens", "Those drawn to end within the budget"
        )
        self.redone_tokens = self._counter("redone_tokens", "Tokens that a guard threw away")
        self.redone_rows = self._counter("redone_rows", "Rows of which a guard threw some away")
        self.preempted = self._counter(
            "preempted_rows", "Times that a row had to wait again for room in the cache"
        )
        self.restarts = self._counter("decoder_restarts", "Times that the running batch broke")
        self.running = self._gauge("running_rows", "Rows in the batch")
        self.waiting = self._gauge("waiting_rows", "Rows that wait for a place in it")
        self.seats = self._gauge(
            "seats_taken", "Rows in the house: in preparation, waiting, running"
        )
        self.seconds = Histogram(
            "masked_sampling_row_seconds",
            "From the prefill of a row to its last token",
            registry=self.registry,
            buckets=_SECONDS,
        )

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"masked_sampling_{name}", what, labels, registry=self.registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"masked_sampling_{name}", what, registry=self.registry)

    def ended(self, completion: Completion) -> None:
        """Count a row that has ended."""
        self.rows.labels(completion.finish_reason).inc()
        self.prompt_tokens.inc(completion.prompt_tokens)
        self.generated_tokens.inc(completion.steps)
        self.forced_tokens.inc(completion.forced)
        self.hurried_tokens.inc(completion.hurried)
        self.redone_tokens.inc(completion.redone)
        self.redone_rows.inc(bool(completion.redone))
        self.seconds.observe(completion.seconds)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
