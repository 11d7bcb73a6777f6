"""Mimi on a GPU: each direction a chain of kernel launches on static buffers.

A frame of the published codec is 59 launches of encode and 52 of decode, whatever the rows. At one
row the chain of launches is what takes the time, so each fetches its weights while the one before
it ends; at many it is the bytes of activations and keys.
"""
