"""Claims about speed, each one command: `python -m benchmarks.NAME`."""
