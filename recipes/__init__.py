"""Deploy files, training and benchmark recipes."""
