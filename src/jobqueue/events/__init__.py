"""The event stream: everything that happens to jobs and queues, in Kafka."""
