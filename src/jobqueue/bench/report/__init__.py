"""Reports from records: tables, plots, and a reading in plain words."""
