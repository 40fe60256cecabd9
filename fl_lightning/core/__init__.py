"""What a federation is made of: its loop, options and their hooks, capabilities, and what a resumed run may change."""

from fl_lightning.core.federation import ServerContext
from fl_lightning.core.option import ClientContext, ClientHooks, Option, ServerHooks, SitePlace

__all__ = ["ClientContext", "ClientHooks", "Option", "ServerContext", "ServerHooks", "SitePlace"]
