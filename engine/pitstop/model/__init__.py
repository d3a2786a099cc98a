"""What things are: frozen models and errors. No I/O.

Modules that a node needs at start-up (`errors`, `fingerprint`, `words`) use the standard
library alone; the models of files that people write are pydantic and imported where used.
"""
