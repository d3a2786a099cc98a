"""Kubernetes: the drain of a node through its API, as careful as eviction allows.

`fields`, `groups`, `resources`, `records`, `choice`, `holding` and `errors` are pure: what an
answer says, what is done with a pod and why, what keeps one from ending. `connection` and
`api` are the only modules that know the official client. `scheduler` cordons and gives back,
`evacuation` is what a step calls to empty a node.
"""
