"""The router that a site declares."""

from __future__ import annotations

from pitstop.fleet.routers.haproxy import HaproxyRouter
from pitstop.fleet.routers.http_calls import DeclaredRouter
from pitstop.fleet.routers.litellm import LitellmRouter
from pitstop.fleet.routers.nginx import NginxRouter
from pitstop.fleet.routers.nginx_plus import NginxPlusRouter
from pitstop.fleet.routers.router import Router
from pitstop.fleet.routers.sglang import SglangRouter
from pitstop.fleet.routers.vllm_stack import VllmStackRouter
from pitstop.model.router import (
    Haproxy,
    HttpRouter,
    Litellm,
    Nginx,
    NginxPlus,
    RouterSpec,
    SglangGateway,
    VllmStack,
)


def router_for(name: str, spec: RouterSpec) -> Router:
    """Return a declared router; nothing is connected before it is asked."""
    match spec:
        case Haproxy():
            return HaproxyRouter(name, spec)
        case Nginx():
            return NginxRouter(name, spec)
        case NginxPlus():
            return NginxPlusRouter(name, spec)
        case SglangGateway():
            return SglangRouter(name, spec)
        case VllmStack():
            return VllmStackRouter(name, spec)
        case Litellm():
            return LitellmRouter(name, spec)
        case HttpRouter():
            return DeclaredRouter(name, spec)
