"""Find the first operation of a step that made a NaN or an infinity, and say why."""
