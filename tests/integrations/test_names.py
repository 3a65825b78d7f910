"""The names of the integrations."""

from __future__ import annotations

from tests.test_public import loaded

import sonde

PUBLIC = {
    "AccelerateTracker",
    "LightningCallback",
    "MLflowSink",
    "OpenTelemetrySink",
    "TensorBoard",
    "TransformersCallback",
    "WandbSink",
}


def test_public_names_are_pinned() -> None:
    """A name that comes or goes must come or go here as well, and each can be had."""
    assert set(sonde.integrations.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(sonde.integrations, name) is not None


def test_importing_the_integrations_imports_none_of_the_foreign_programs() -> None:
    """A name is loaded with its first use."""
    heavy = {"torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "tensorboard", "wandb", "mlflow"}
    assert loaded("import sonde.integrations").isdisjoint(heavy)
