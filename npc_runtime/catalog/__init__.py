"""The catalog of personas and adapters: immutable pictures, and the builder that makes them from folders."""

from npc_runtime.catalog.builder import BaseIdentity, CatalogBuilder
from npc_runtime.catalog.catalog import AdapterFile, Catalog, CatalogEntry, FileProblem

__all__ = ["AdapterFile", "BaseIdentity", "Catalog", "CatalogBuilder", "CatalogEntry", "FileProblem"]
