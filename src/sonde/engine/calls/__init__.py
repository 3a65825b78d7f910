"""Which module call is running, forward or backward."""
