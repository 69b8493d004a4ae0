"""Authentication, authorization and limits of callers. No framework, no network."""
