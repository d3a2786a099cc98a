"""The GPU side of a checkpoint: all CUDA processes of a workload at one boundary."""
