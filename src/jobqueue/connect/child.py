"""Run handlers in a worker's child process, with ``Context.complete`` on their connections."""

from __future__ import annotations

import sys

from jobqueue.connect.transactions import OwnTransactions
from jobqueue.worker.child import main

if __name__ == "__main__":
    main(sys.argv[1:], OwnTransactions(None))
