"""Writes every change of jobs and queues to Kafka (the event stream), and reads it from there."""
