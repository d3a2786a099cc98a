"""The routers before workloads: close one replica, watch it become idle, open it again.

`haproxy_answers`, `nginx_conf` and `metrics` are pure; `on_machine` is what runs where a
router's socket or file is, here or by SSH.
"""
