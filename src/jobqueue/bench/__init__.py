"""What ``jq-bench`` measures, how, and what it makes of it."""
