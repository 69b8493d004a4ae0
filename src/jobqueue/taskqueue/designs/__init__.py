"""Build the two designs of the task queue: six services, or nodes that each have all parts."""
