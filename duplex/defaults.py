"""What is served, and where, when nobody says otherwise."""

DEFAULT_MODEL = "nano"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8091
DEFAULT_URL = f"ws://{DEFAULT_HOST}:{DEFAULT_PORT}"
