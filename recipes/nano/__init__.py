"""nano: the small full-duplex model that ships with the server, and the recipe that makes it."""
