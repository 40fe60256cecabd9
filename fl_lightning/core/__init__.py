"""What a federation is made of: its loop, options and their hooks, capabilities, and what a resumed run may change."""

from fl_lightning.core.option import ClientContext, ClientHooks, Option, ServerContext, ServerHooks

__all__ = ["ClientContext", "ClientHooks", "Option", "ServerContext", "ServerHooks"]
