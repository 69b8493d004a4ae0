"""Defines the domain: jobs, their lifecycle, and the Protocols between the parts of the system.

The package imports the standard library only.
"""
