"""pitstop's Prefect collection: the flow `maintain_node`, its tasks, and two blocks.

Importing this registers the blocks and does nothing else.
"""

from pitstop.flows.blocks import PitstopSite, SshCredentials

__all__ = ["PitstopSite", "SshCredentials"]
