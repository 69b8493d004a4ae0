"""Run handlers in a process of a worker, where they can join transactions of their own."""

from __future__ import annotations

import sys

from jobqueue.connect.transactions import OwnTransactions
from jobqueue.worker.child import main

if __name__ == "__main__":
    main(sys.argv[1:], OwnTransactions(None))
