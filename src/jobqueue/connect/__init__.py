"""From a URL to the store or the servers that it names, with patience at the start."""
