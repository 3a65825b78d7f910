"""Rules about the training as a whole: its loss, its norms, its loop."""

from __future__ import annotations

from sonde.rules.finding import Finding, rule, short

__all__ = ["SPIKE", "SPIKE_VALUES", "no_training_forward", "spike"]

SPIKE, SPIKE_VALUES = 10.0, 64
"""Deviations from the median of the last 128 values, both of logarithms, and the fewest values. OLMo-core's SpikeScore has 6
standard deviations above the mean of 128 values; healthy trainings on small batches, with losses of all sizes, reach 8."""


@rule(
    f"a loss or norm {SPIKE:g} deviations above the median of 128 logged values (of logarithms), and as large as at the beginning",
    "OLMo-core, SpikeScore; Megatron-LM, 10 x the largest of the first 100",
    "look at the batch of this step; clip the gradient norm, lower the learning rate",
)
def spike(value: float, median: float, deviations: float) -> Finding | None:
    """Judge a *value*, *deviations* above the *median* of the values before it."""
    if not deviations >= SPIKE:
        return None
    words = f"jumped to {short(value)}, {short(value / median)} x its median"
    evidence = {"value": value, "median": median, "deviations": deviations}
    return Finding("", words, value=value, evidence=evidence)


@rule(
    "logged steps with a backward pass and no forward pass in training mode: two, or all that there are",
    "outputs and their gradients are recorded in training passes alone",
    "call model.train() after each evaluation; watch(evaluation=True) records evaluation passes too",
)
def no_training_forward(missed: int, logged: int) -> Finding | None:
    """Judge how many of the *logged* steps *missed* a forward pass in training mode, though there was one in evaluation mode."""
    if missed < min(2, max(logged, 1)):
        return None
    words = f"{logged - missed:,} of {logged:,} logged steps had a training forward: is the model in eval()?"
    return Finding("", words, value=missed, severity="bad", evidence={"missed": missed, "logged": logged})
