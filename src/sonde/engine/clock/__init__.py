"""Count the epochs, steps, micro-steps and forwards of each observed root."""
