"""Define tasks: the functions for which producers encode jobs and which workers execute."""
