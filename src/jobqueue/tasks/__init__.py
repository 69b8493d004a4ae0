"""Tasks: what producers encode for and workers execute."""
