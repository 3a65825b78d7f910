"""Tensors on disk: safetensors shards of bounded size with a JSON index, written all at once or shard by shard."""
