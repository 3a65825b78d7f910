"""From a step's data on its device to finished rows in the sinks."""
