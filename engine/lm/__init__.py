"""The RQ-transformer of Moshi and PersonaPlex: a temporal transformer over frames, a depformer
over the codebooks of one frame."""
