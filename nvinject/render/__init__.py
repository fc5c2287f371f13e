"""Takes a Plan and changes a container or writes a document. Never decides."""
