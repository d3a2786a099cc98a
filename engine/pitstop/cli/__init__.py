"""The command `pitstop`. (`pitstop-node` lives with the node's engine, for its light start.)"""
