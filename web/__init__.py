"""The aiohttp application: routes, sockets, auth, limits, metrics."""
