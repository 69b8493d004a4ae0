"""Keeps a topology's processes running on this machine."""
