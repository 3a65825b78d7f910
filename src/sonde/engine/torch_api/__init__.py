"""Use torch's private parts: the only folder that does, and every name is listed in ``private_names.py``."""
