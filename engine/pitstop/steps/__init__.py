"""The verbs of a run, and the sequence that joins them."""
