"""Read some batches of a training as they pass: labels, targets, gradients, what outputs depend on, and how the loss was made."""

from sonde.inspector.batches.batch_checks import BatchChecks as BatchChecks
from sonde.inspector.batches.look import PASSES as PASSES
from sonde.inspector.batches.loss_graph import LossGraph as LossGraph
from sonde.inspector.batches.part_passes import PartPasses as PartPasses
