"""Write a run: rows into tables and parts, in one thread, on disk or in memory."""
