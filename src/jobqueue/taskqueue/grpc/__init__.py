"""Implement the gRPC API of the task queue: one public service and four internal services."""
