"""Read the public keys of the sites that a site trusts in a sum with its own update."""

from __future__ import annotations

from pathlib import Path

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.wire.keys import read_public_key


def read_peers(policy: Policy) -> dict[str, bytes]:
    """Return the public keys in the folder of ``Masks.peers`` by the names of their files, which are those of the sites.

    Raises:
        ConfigurationError: if the folder does not exist, has none, or a file is no public key of a site.
    """
    if policy.masks is None:
        return {}
    peers = policy.masks.peers
    files = sorted(Path(peers).glob("*.pub"))
    if not files:
        raise ConfigurationError(
            f"'policy.update.masks.peers' is '{peers}', which is no folder with files NAME.pub. Put the public keys there that "
            "the other sites have given you, each under the name of its site."
        )
    return {file.stem: read_public_key(file) for file in files}
