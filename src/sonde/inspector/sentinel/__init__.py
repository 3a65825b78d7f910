"""Watch every step for NaN and infinity; keep the step in which one appears, and replay it."""
