"""Compare jobqueue with other queue systems, by the same no-op work on one machine."""
