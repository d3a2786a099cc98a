"""The commands `pitstop` and `pitstop-node`."""
