"""Random numbers that a test chooses."""

from __future__ import annotations

import random


class Rng(random.Random):
    """Notes the ranges that it is asked for, and draws their ``share``."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.ranges: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.ranges.append((a, b))
        return a + (b - a) * self.share
