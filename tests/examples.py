"""How many examples Hypothesis tries: few in `make test`, many times as many in the nightly run.

@settings(max_examples=examples(20))
@pytest.mark.timeout(60 * FACTOR)       where the usual limit is too short for that many
"""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("JQ_TEST_EXAMPLES", "1"))


def examples(few: int) -> int:
    """Return the number of examples for this run; `make test` tries ``few``."""
    return few * FACTOR
