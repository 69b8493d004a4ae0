"""A store, rebuilt from the event stream."""
