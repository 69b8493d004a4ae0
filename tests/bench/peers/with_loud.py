"""A peer that writes where only answers belong."""

import os

os.write(1, b"Segmentation fault\n")
os._exit(1)
