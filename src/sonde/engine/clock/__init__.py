"""When: epochs, steps, micro-steps and forwards, counted once per observed root."""
