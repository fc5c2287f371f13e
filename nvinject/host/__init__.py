"""Looks at a machine, only through a Root, and returns values of nvinject.core.model."""
