"""Create stores and clients from URLs, and retry at the start while a store is unreachable."""
