"""Decisions, as pure functions on values: no os, no open, no environment, no clock."""
