"""Track which module call is running, forward or backward."""
