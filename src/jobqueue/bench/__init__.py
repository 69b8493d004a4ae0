"""``jq-bench``: load, measurements, records and reports."""
