"""Run handlers on the event loop, in threads, in processes, or as external programs."""
