"""Runs the processes and private servers of a topology on one machine, for `jq-ctl up`."""
