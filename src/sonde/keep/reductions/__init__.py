"""Ready-made reductions: what a recorder keeps of many values."""
