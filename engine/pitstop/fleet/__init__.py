"""How a controller reaches things: transports, and the node behind them."""
