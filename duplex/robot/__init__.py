"""Robots over OpenPI: the protocol without I/O, and the process in which a policy runs."""
