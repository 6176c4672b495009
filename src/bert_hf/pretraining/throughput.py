"""Measures the speed of a run: non-padding tokens per second, and model FLOPs utilisation (MFU)."""

import contextlib
import time
from collections.abc import Callable, Iterator


class Throughput:
    """Accumulate time, tokens and FLOPs of training, per log line and for the whole run.

    The trainer pauses the clock during evaluation and saving. `measure_peak` returns the FLOP/s of one device.
    """

    def __init__(self, ranks: int, measure_peak: Callable[[], float]):
        self.ranks = ranks
        self.measure_peak = measure_peak
        self.peak = 0.0  # FLOP/s of one device, measured when it is first needed
        self._running_since: float | None = None
        self.reset()

    def reset(self) -> None:
        """Set all sums to zero; the clock runs on."""
        self.seconds = 0.0  # on the clock since the last log line
        self.whole_run = {"seconds": 0.0, "tokens": 0.0, "flops": 0.0}

    def start_clock(self) -> None:
        self._running_since = time.perf_counter()

    def read_clock(self) -> None:
        """Add the time since the clock was last read to `seconds`, if it runs."""
        if self._running_since is not None:
            now = time.perf_counter()
            self.seconds += now - self._running_since
            self._running_since = now

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context manager: stop the clock, and start it again if it ran."""
        self.read_clock()
        was_running = self._running_since is not None
        self._running_since = None
        yield
        if was_running:
            self.start_clock()

    def end_line(self, tokens: float, flops: float) -> dict[str, float]:
        """Add a log line's tokens and FLOPs (all ranks), and `seconds`, to the whole run; return the line's speed."""
        line = {"seconds": self.seconds, "tokens": tokens, "flops": flops}
        self.seconds = 0.0
        self.whole_run = {name: self.whole_run[name] + value for name, value in line.items()}
        return self.speed(**line)

    def speed(self, seconds: float, tokens: float, flops: float) -> dict[str, float]:
        """Return tokens per second and MFU; the first call measures a device's peak, with the clock stopped."""
        seconds = max(seconds, 1e-9)
        rate = flops / seconds / self.ranks

        if not self.peak:
            with self.paused():
                self.peak = self.measure_peak()
        self.peak = max(self.peak, rate)  # a rate that the run has reached is possible, so MFU is never above 1
        return {"train_tokens_per_second": round(tokens / seconds, 1), "train_mfu": round(rate / self.peak, 4)}
