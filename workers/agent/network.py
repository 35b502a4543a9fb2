"""Which network interface carries a node's address."""

import ipaddress
import socket

import psutil


def interface_of(address: str) -> str:
    """Return the name of the interface that has `address`; empty where none has it, so that gloo finds its own.

    A loopback address that is not listed (127.0.0.2) belongs to the interface of 127.0.0.1.
    """
    loopback = ipaddress.ip_address(address).is_loopback
    for name, entries in sorted(psutil.net_if_addrs().items()):
        for entry in entries:
            if entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if entry.address == address:
                return str(name)
            if loopback and ipaddress.ip_address(entry.address.partition("%")[0]).is_loopback:
                return str(name)
    return ""
