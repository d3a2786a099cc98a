"""Pure functions from models to decisions. No I/O, no clock, no randomness."""
