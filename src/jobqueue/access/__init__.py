"""Who calls, what they may do, and how fast. Pure decisions: no framework, no network."""
