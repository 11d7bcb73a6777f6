"""Client library, command-line clients and load generator."""
