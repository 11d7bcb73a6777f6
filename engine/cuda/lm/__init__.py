"""The RQ-transformer on a GPU: a frame of any set of rows as one chain of launches.

`engine.lm` says what is computed. Everything that a launch reads or writes is at a fixed place,
so that a chain can be captured in a CUDA graph and replayed.
"""
