"""Tests for machines with a real GPU."""
