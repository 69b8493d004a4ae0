"""The domain: jobs, their lifecycle, the seams. Standard library only."""
