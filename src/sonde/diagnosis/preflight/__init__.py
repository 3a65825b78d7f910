"""Check a model, a batch, a loss and an optimizer before a training begins."""
