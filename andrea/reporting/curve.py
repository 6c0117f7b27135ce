"""A curve over steps in bounded memory: of a run of weeks as many points as a screen can show.

For metrics.py; what a bucket of steps hides is told by its lowest and highest value.
"""

from __future__ import annotations

from dataclasses import dataclass

CAPACITY = 1024


@dataclass(slots=True)
class Bucket:
    """Values of the steps `first` to `last`: how many, their sum, the lowest, the highest."""

    first: int
    last: int
    count: int
    total: float
    low: float
    high: float

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return self.total / self.count


class Curve:
    """Buckets of equally many steps, at most `capacity`; they get wider as the run gets longer.

    Bucket b holds the steps from b * width on, so that a curve is the same whether it was heard
    step by step or read from a log at once.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.buckets: list[Bucket] = []
        self.width = 1
        self._capacity = capacity
        self._end = 0  # the first step that belongs to a new bucket

    def add(self, step: int, value: float) -> None:
        """Take in the value of a step; steps come in rising order."""
        if step < self._end:
            bucket = self.buckets[-1]
            if step > bucket.last:
                bucket.last = step
            bucket.count += 1
            bucket.total += value
            if value < bucket.low:
                bucket.low = value
            elif value > bucket.high:
                bucket.high = value
            return
        self.buckets.append(Bucket(step, step, 1, value, value, value))
        while len(self.buckets) > self._capacity:
            self._widen()
        self._end = (step // self.width + 1) * self.width

    def cut(self, step: int) -> None:
        """Forget the steps after `step`; a bucket on both sides of it keeps its values."""
        while self.buckets and self.buckets[-1].first > step:
            self.buckets.pop()
        if self.buckets:
            self.buckets[-1].last = min(self.buckets[-1].last, step)
            self._end = (self.buckets[-1].first // self.width + 1) * self.width
        else:
            self._end = 0

    @property
    def last(self) -> float | None:
        """The newest value, or the mean of its bucket; None of an empty curve."""
        return self.buckets[-1].mean if self.buckets else None

    def _widen(self) -> None:
        self.width *= 2
        wide: list[Bucket] = []
        for bucket in self.buckets:
            if wide and wide[-1].first // self.width == bucket.first // self.width:
                joined = wide[-1]
                joined.last = bucket.last
                joined.count += bucket.count
                joined.total += bucket.total
                joined.low = min(joined.low, bucket.low)
                joined.high = max(joined.high, bucket.high)
            else:
                wide.append(bucket)
        self.buckets = wide  # at once: a thread that draws never sees half of them
