"""Write a variant as a folder that runs on its own and checks itself."""

from workbench.export.bundle import Bundle, write
from workbench.export.readme import About, readme

__all__ = ["About", "Bundle", "readme", "write"]
