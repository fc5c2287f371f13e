"""Makes `pytest conformance` collect the case files."""

from nvconform.plugin import pytest_addoption, pytest_collect_file, pytest_sessionfinish, pytest_terminal_summary

__all__ = ["pytest_addoption", "pytest_collect_file", "pytest_sessionfinish", "pytest_terminal_summary"]
