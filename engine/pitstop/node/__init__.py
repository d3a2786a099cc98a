"""What runs on a GPU node: launcher, CRIU, operations. Imports stay light."""
