"""What a reader gets from records: tables, plots, and a reading in plain words."""
