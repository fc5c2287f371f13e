"""Argument lists, words for people and exit codes; one module a command."""
