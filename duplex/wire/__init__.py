"""Wire protocols without I/O: bytes or dicts in, commands out; events in, dicts out."""
