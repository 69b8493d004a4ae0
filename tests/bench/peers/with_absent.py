"""A peer whose package is broken."""

raise ImportError("libfast.so is missing")
