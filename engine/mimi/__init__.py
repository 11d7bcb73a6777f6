"""Mimi, the streaming neural codec: one 80 ms frame of sound to a few codes, and back."""
