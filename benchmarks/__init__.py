"""Measured side by side with the peer in one run, printed as ratios."""
