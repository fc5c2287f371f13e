"""Random and mutated input for everything that a container or an image controls."""
