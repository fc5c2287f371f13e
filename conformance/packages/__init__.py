"""Discovery on real driver packages."""
