"""Processes and private servers on one machine, for `jq-ctl up`, `ps` and `down`."""
