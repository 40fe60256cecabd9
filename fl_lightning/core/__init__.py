"""What a federation is made of: its loop, options and their hooks, capabilities, and what a resumed run may change."""

from fl_lightning.core.hooks import ClientContext, ClientHooks, ServerContext, ServerHooks, SitePlace
from fl_lightning.core.option import Option

__all__ = ["ClientContext", "ClientHooks", "Option", "ServerContext", "ServerHooks", "SitePlace"]
