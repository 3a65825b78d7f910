"""The five recorders of the second seed, with their slots, table and registration."""
