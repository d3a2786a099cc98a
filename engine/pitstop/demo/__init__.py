"""The demo's workload: a real llama.cpp inference server, its model, releases and client."""
