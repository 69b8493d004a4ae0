"""What is asked of both designs: one object for the two of them, so that it is the same."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

METHODS = ("SubmitJob", "GetJobStatus", "GetJobResult", "CancelJob")
_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the requests, in the order of METHODS."""

    submit: int = 2
    status: int = 1
    result: int = 1
    cancel: int = 0

    @property
    def shares(self) -> tuple[int, ...]:
        """In the order of METHODS."""
        return (self.submit, self.status, self.result, self.cancel)

    def __str__(self) -> str:
        shares = self.shares if self.cancel else self.shares[:3]
        return "/".join(map(str, shares))


@dataclass(frozen=True, slots=True)
class Profile:
    """The load."""

    concurrency: int = 8
    work_duration_ms: int = 0
    payload_size_bytes: int = 0
    mix: Mix = Mix()
    warm_up: float = 1.0
    seconds: float = 5.0
    listings: int = 50

    def __str__(self) -> str:
        return (
            f"{self.concurrency} callers for {self.seconds:g} s after {self.warm_up:g} s"
            f" of warm-up, jobs of {self.work_duration_ms} ms with {self.payload_size_bytes}"
            f" bytes of output, submit/status/result {self.mix}"
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The factors, so that another load takes no change of code."""
    default = Profile()
    parser.add_argument(
        "--concurrency", type=_levels, default=[1, 8, 32], metavar="N[,N…]",
        help="callers at once; each level is measured for each design (1,8,32)",
    )  # fmt: skip
    parser.add_argument(
        "--work-duration-ms", type=_number, default=default.work_duration_ms, metavar="MS",
        help="how long a job takes (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--payload-size-bytes", type=_number, default=default.payload_size_bytes, metavar="BYTES",
        help="how large its output is (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--mix", type=_mix, default=default.mix, metavar="SUBMIT/STATUS/RESULT[/CANCEL]",
        help="shares of the requests (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--warm-up", type=_seconds, default=default.warm_up, metavar="SECONDS",
        help="load that is not counted, before each level (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=_seconds, default=default.seconds, metavar="SECONDS",
        help="load that is counted (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--listings", type=_number, default=default.listings, metavar="N",
        help="calls of ListJobs, one after another and apart from the rest (%(default)s)",
    )  # fmt: skip


def profiles(options: argparse.Namespace) -> list[Profile]:
    """One for each level of concurrency."""
    one = Profile(
        work_duration_ms=options.work_duration_ms,
        payload_size_bytes=options.payload_size_bytes,
        mix=options.mix,
        warm_up=options.warm_up,
        seconds=options.seconds,
        listings=options.listings,
    )
    return [replace(one, concurrency=level) for level in options.concurrency]


def _levels(text: str) -> list[int]:
    levels = [_number(part) for part in text.split(",")]
    if not all(1 <= level <= 10_000 for level in levels):
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers from 1 to 10000")
    return levels


def _mix(text: str) -> Mix:
    shares = [_number(part) for part in text.split("/")]
    if len(shares) not in (3, 4) or not shares[0]:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected SUBMIT/STATUS/RESULT or SUBMIT/STATUS/RESULT/CANCEL,"
            " like 2/1/1, with some submits"
        )
    return Mix(*shares)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _MOST:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0 to {_MOST}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3_600:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, more than 0, at most 3600")
    return seconds
