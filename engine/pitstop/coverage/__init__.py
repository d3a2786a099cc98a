"""What share of a queue fits on one node: traces and live queues, read in streams.

Each source becomes a lazy frame with the columns of `frame.COLUMNS`; `shares` adds them up.
"""
