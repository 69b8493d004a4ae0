"""The gRPC face of the task queue document: the public service and the four internal ones."""
