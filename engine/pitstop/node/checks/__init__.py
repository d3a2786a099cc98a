"""The doctor's checks. In each file reading the machine and judging what was read are apart."""
