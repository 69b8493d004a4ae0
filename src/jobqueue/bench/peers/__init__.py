"""The same no-op work on jobqueue and on its peers, on the same machine and the same servers."""
