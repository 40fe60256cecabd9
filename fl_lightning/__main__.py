"""``python -m fl_lightning``, the same as ``fl-lightning``."""

from fl_lightning.cli.command import main

if __name__ == "__main__":
    main()
