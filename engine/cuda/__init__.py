"""The engine on a GPU: the same models as launches of kernels on static buffers.

`engine.lm` and `engine.mimi` are the specification; what is here computes the same, faster.
"""
