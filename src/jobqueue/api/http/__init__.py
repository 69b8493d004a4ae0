"""The HTTP face: decode, call the backend, encode."""
