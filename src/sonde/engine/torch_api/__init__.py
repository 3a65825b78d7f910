"""Everything that sonde uses of torch's private parts."""
