"""Deliver jobs to workers by hints in Kafka. A hint wakes a worker; the store decides."""
