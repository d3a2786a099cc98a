"""The durable record of runs."""
