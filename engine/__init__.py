"""Models and their execution: slots, stepping, codec, transformers, checkpoints."""
