"""Declared GPU machines that programs cannot tell from real ones."""
