"""Make reports from run records: tables, plots, and conclusions in plain words."""
