"""A peer whose workers end at once."""

from __future__ import annotations

import sys

from with_fake import FakePeer


class LamePeer(FakePeer):
    def workers(self) -> list[list[str]]:
        return [[sys.executable, "-c", "raise SystemExit('no such setting: speed')"]]


make = LamePeer
