"""Define the version of jobqueue."""

__version__ = "0.1.0"
