"""The rendezvous store: a process beside rank 0 that outlives rounds, listening on the node's address alone."""

import socket
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from workers.agent.forkserver import ColdForkserverError, WarmForkserver
from workers.guard import end_with_parent


class Store:
    """A running store; `process.sentinel` tells its end."""

    def __init__(self, server: WarmForkserver, host: str, *, seconds: float = 30.0) -> None:
        """Fork it and wait until it listens. Raises ColdForkserverError."""
        receiver, sender = server.pipe()
        self.process: BaseProcess = server.fork(store_main, host, sender)
        sender.close()
        try:
            if not receiver.poll(seconds):
                raise ColdForkserverError(
                    f"the rendezvous store on {host} did not listen within {seconds:g} s"
                )
            port: int = receiver.recv()
        except EOFError as error:
            raise ColdForkserverError(f"the rendezvous store on {host} ended at once") from error
        finally:
            receiver.close()
        self.address = f"{host}:{port}"

    @property
    def pid(self) -> int:
        """The store's process id."""
        assert self.process.pid is not None
        return self.process.pid


def store_main(host: str, conn: Connection) -> None:
    """Serve a TCPStore on a free port of `host` until the agent ends."""
    end_with_parent()
    import torch.distributed as dist  # the agent imports this module and never torch

    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but torch does not mark it as such
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    conn.send(port)
    conn.close()
    while store is not None:
        time.sleep(3600)
