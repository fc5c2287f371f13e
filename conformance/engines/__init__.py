"""Container engines that call the hook by themselves."""
