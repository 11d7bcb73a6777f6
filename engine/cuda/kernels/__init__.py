"""Triton kernels. Sizes that kernels need as powers of two or multiples of a tile are made so by
padding the weights with zeros when they are loaded, so no kernel masks its inner loop.
"""
