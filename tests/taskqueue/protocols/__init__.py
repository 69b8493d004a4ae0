"""The parts as plain objects, and each race of their protocols driven to each of its orders."""
