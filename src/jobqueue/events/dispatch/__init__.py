"""Dispatch over Kafka: hints that wake schedulers and workers; the store decides."""
