"""Stages: what an engine does beside its conversations, a bounded piece at a time."""
