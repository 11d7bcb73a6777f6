"""A two-joint arm that reaches for what its camera sees, over a socket."""
