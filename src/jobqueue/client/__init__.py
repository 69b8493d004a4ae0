"""The SDK behind ``JobQueue``."""
