"""What the hook may cost, in numbers that no machine's speed changes."""
