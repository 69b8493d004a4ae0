"""Generated from proto/ by scripts/proto: do not edit."""
