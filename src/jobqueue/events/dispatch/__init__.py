"""Wake workers by hints in Kafka. A worker then reads its jobs from the store."""
