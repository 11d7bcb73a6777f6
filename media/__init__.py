"""Audio and video in time: formats, resampling, framing, clocks."""
