"""Use torch's private parts: the only folder that does, and every name is listed in ``private_names.py``."""

from sonde.engine.torch_api.private_names import missing, require

require(missing())
