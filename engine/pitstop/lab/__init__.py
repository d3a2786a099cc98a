"""The lab: nodes made of namespaces on one machine, for the demo and for tests.

`pitstop.lab.lab.Lab` is the way in. A node has its own network, hostname, mounts, pids, IPC
and cgroup namespaces, its own pid 1, sshd, host key and boot id; it can reboot and lose power.
The machine's own network gets no link, no address and no route from it.

Nothing is imported here: a node's pid 1 and the dialler start from this package and must
be light.
"""
