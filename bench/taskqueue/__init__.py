"""The two designs of the task queue document under one load."""
