"""Bytes to values and back, for formats that others define. Pure."""
